"""An agent and a console at work: ``python -m bls_agent.demo``.

An order service with an agent, and a console that sends it good commands, bad ones and
rubbish, while Redis is killed under both and brought back. A step acts at one end,
waits for what the console reads at the other, and raises when the package breaks a
promise: everything on the screen, and in the table at the end, was read from Redis.

The server is one of our own (the ``server`` extra), or that of ``BLS_REDIS_URL``, which
is not killed. Exit code 0: everything happened; 1: something did not; 2: the demo could
not run; 130: Ctrl-C.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias, TypeVar

import anyio
import anyio.to_thread

from bls_agent.agent import ProjectAgent
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Endpoint
from bls_agent.console import Console
from bls_agent.core.codec import encode
from bls_agent.core.errors import BlsError, RedisUnavailableError
from bls_agent.core.keys import CONTROL, PROJECT_CONSOLE, PROJECT_STATUS
from bls_agent.core.redaction import mask_url
from bls_agent.devserver import DevServer
from bls_agent.ops import terminal
from bls_agent.ops.demo_fleet import Screen, make_orders, serve_fleet
from bls_agent.ops.texts import Texts, find_language, load_texts, make_parser
from bls_agent.project.messages import (
    Command,
    LogEntry,
    Outcome,
    OutcomeKind,
    Status,
)

PROGRAM: Final = "python -m bls_agent.demo"
TIDY_DEADLINE: Final = 3.0
FAREWELL_DEADLINE: Final = 1.0  # seconds in which the last status is still shown
STEP_DEADLINE: Final = 5.0  # seconds until a step has failed
LOOK_INTERVAL: Final = 0.05  # seconds between two looks of the console
MEANWHILE: Final = (1, 2, 3)  # the records that are written while Redis is away
MALFORMED: Final = {
    "not_json": b"reload, please",
    "not_an_object": b'["reload"]',
    "not_utf8": b"\x1b[2J\x1b[31m\xff",
}
T = TypeVar("T")


class Skipped(Exception):  # noqa: N818 - a signal: the step is not possible here
    """A step cannot be shown here; the text says why."""


class Surprise(Exception):  # noqa: N818 - a verdict, not an error of the package
    """The console did not see what a step promises; the text says what."""


class Mark(IntEnum):
    """How a step ended."""

    SHOWN = 0
    FAILED = 1
    SKIPPED = 2


class Result(NamedTuple):
    """A row of the table at the end."""

    name: str
    mark: Mark
    detail: str = ""


@dataclass(frozen=True)
class Place:
    """The server and the project of the demo."""

    url: str
    project: str
    server: DevServer | None  # if it is ours to be killed

    @property
    def keys(self) -> list[str]:
        """The three keys of the project."""
        templates = (PROJECT_STATUS, PROJECT_CONSOLE, CONTROL)
        return [template.build(project=self.project) for template in templates]


@dataclass
class Stage:
    """What the steps share: both ends, and what the console has seen so far."""

    place: Place
    agent: ProjectAgent
    console: Console
    screen: Screen
    packed: anyio.Event  # lets the handler of `pack` come to its end
    life: AsyncExitStack = field(default_factory=AsyncExitStack)  # closes the agent
    entries: list[LogEntry] = field(default_factory=list[LogEntry])
    status: Status | None = None
    reachable: bool = True  # Redis answered the last question
    awaited: str = ""  # what a step waits for, in words

    @property
    def texts(self) -> Texts:
        """The catalogue."""
        return self.screen.texts

    async def follow_logs(self) -> None:
        """Show each log record as it is written."""
        async for entry in self.console.follow_logs(
            self.place.project, last=1_000, interval=LOOK_INTERVAL
        ):
            self.screen.entry(entry)
            self.entries.append(entry)

    async def follow_status(self) -> None:
        """Show the status whenever it changes, and whether Redis answers at all."""
        while True:
            before, reachable, kind = self.status, True, ""
            try:
                self.status = await self.console.status(self.place.project)
            except RedisUnavailableError as error:
                reachable, kind = False, error.kind
            if self.reachable is not reachable:
                self.screen.redis(
                    self.texts["back" if reachable else "away"].format(kind=kind)
                )
                self.reachable = reachable
            if self.status is not before:
                self.screen.status(self.status)
            await anyio.sleep(LOOK_INTERVAL)

    async def send(self, name: str, **args: object) -> Command:
        """Send a command as the console does."""
        self.screen.sent(f"{name} {encode(args).decode() if args else ''}")
        return await self.console.send(self.place.project, name, args)

    async def until(self, what: str, find: Callable[[], T]) -> T:
        """Wait until ``find`` finds something in what was seen, and give it."""
        self.awaited = what
        while True:
            if found := find():
                return found
            await anyio.sleep(LOOK_INTERVAL)

    async def ended(self, command: Command, kind: OutcomeKind) -> Outcome:
        """Wait for a command's outcome, which has to be of this kind."""

        def find() -> list[Outcome]:
            found = [entry.outcome for entry in self.entries]
            return [one for one in found if one and one.command_id == command.id]

        outcome = (await self.until(f"{command.command}: {kind.value}", find))[0]
        self.expect(outcome.message, holds=outcome.kind is kind)
        return outcome

    async def shows(self, status: Status) -> None:
        """Wait until the console reads this status."""
        await self.until(status.value, lambda: self.status is status)

    def records_of(self, command: Command) -> list[LogEntry]:
        """Return the records that a command's handler has written."""
        return [
            entry
            for entry in self.entries
            if entry.metadata.get("commandId") == command.id and not entry.outcome
        ]

    def expect(self, what: str, *, holds: bool) -> None:
        """Fail the step if something does not hold."""
        if not holds:
            raise Surprise(self.texts["not_as_expected"].format(what=what))


async def come_online(stage: Stage) -> None:
    """Open the agent: the console reads that it is online."""
    await stage.life.enter_async_context(stage.agent)
    await stage.shows(Status.ONLINE)


async def run_command(stage: Stage) -> None:
    """A good command: its handler writes a record, its result is reported."""
    command = await stage.send("reload", force=True)
    outcome = await stage.ended(command, OutcomeKind.SUCCEEDED)
    stage.expect(outcome.message, holds=outcome.result == {"rules": 42})
    stage.expect(outcome.message, holds=len(stage.records_of(command)) == 1)


async def reject_arguments(stage: Stage) -> None:
    """Wrong arguments: rejected, each named, before the handler runs."""
    command = await stage.send("reload", force="yes", fast=1)
    outcome = await stage.ended(command, OutcomeKind.REJECTED)
    told = outcome.message
    stage.expect(told, holds="'force'" in told and "'fast'" in told)
    stage.expect(told, holds=not stage.records_of(command))


async def report_unknown(stage: Stage) -> None:
    """A command without a handler."""
    await stage.ended(await stage.send("relaod"), OutcomeKind.UNKNOWN)


async def cut_off(stage: Stage) -> None:
    """A handler that takes too long: cancelled, and the next command runs."""
    command = await stage.send("import")
    outcome = await stage.ended(command, OutcomeKind.TIMED_OUT)
    stage.expect(outcome.message, holds=len(stage.records_of(command)) == 1)


async def discard_malformed(stage: Stage) -> None:
    """Three messages that are no commands: reported and discarded."""
    for payload in MALFORMED.values():
        stage.screen.sent(payload.decode("utf-8", "backslashreplace"))
    control = CONTROL.build(project=stage.place.project)
    endpoint = Endpoint.of(stage.place.url)
    async with aclosing(Connection(endpoint, "bls-demo")) as connection:
        await connection.call("RPUSH", control, *MALFORMED.values())
    await stage.ended(await stage.send("ping"), OutcomeKind.SUCCEEDED)
    found = [entry.outcome for entry in stage.entries if entry.outcome]
    reasons = [
        str(one.error["reason"]) for one in found if one.kind is OutcomeKind.DISCARDED
    ]
    stage.expect(", ".join(reasons), holds=reasons == list(MALFORMED))


async def change_status(stage: Stage) -> None:
    """The service sets its status, and the console reads it."""
    for status in (Status.ERROR, Status.ONLINE):
        stage.agent.set_status(status)
        await stage.shows(status)


async def survive_restart(stage: Stage) -> None:
    """Kill Redis while one command runs, one waits, and records are written."""
    server = stage.place.server
    if server is None:
        raise Skipped(stage.texts["not_our_server"])
    packing = await stage.send("pack", order=7)
    await stage.until("pack", lambda: stage.records_of(packing))
    waiting = await stage.send("reload")
    await anyio.to_thread.run_sync(server.kill)
    stage.screen.redis(stage.texts["killed"].format(pid=server.pid))
    await stage.until("Redis", lambda: not stage.reachable)
    for number in MEANWHILE:
        stage.agent.log.info(stage.texts["log_meanwhile"], number=number)
    stage.packed.set()
    await be_refused(stage, "reload")
    await anyio.to_thread.run_sync(server.restart)
    stage.screen.redis(stage.texts["restarted"].format(pid=server.pid))
    late = await stage.send("reload")
    for command in (packing, waiting, late):
        await stage.ended(command, OutcomeKind.SUCCEEDED)
    await check_once(stage, (packing, waiting, late))


async def be_refused(stage: Stage, name: str) -> None:
    """Send a command while Redis is away: it is refused, and surely not taken."""
    try:
        await stage.send(name)
    except RedisUnavailableError as error:
        stage.expect(str(error), holds=not error.ambiguous)
        stage.screen.redis(stage.texts["refused"].format(command=name))
    else:
        stage.expect(name, holds=False)


async def check_once(stage: Stage, commands: Sequence[Command]) -> None:
    """Read the whole list again: one outcome for each command, each record once."""
    entries = await stage.console.logs(stage.place.project, 1_000)
    text = stage.texts["log_meanwhile"]
    numbers = [item.metadata.get("number") for item in entries if item.message == text]
    stage.expect(f"{text}: {numbers}", holds=numbers == list(MEANWHILE))
    ended = Counter(item.outcome.command_id for item in entries if item.outcome)
    for command in commands:
        stage.expect(command.command, holds=ended[command.id] == 1)


async def stop(stage: Stage) -> None:
    """Close the agent: its final status stays."""
    await stage.life.aclose()
    await stage.shows(Status.OFFLINE)


Step: TypeAlias = Callable[[Stage], Awaitable[None]]

STEPS: Final[Mapping[str, Step]] = {
    "online": come_online,
    "command": run_command,
    "arguments": reject_arguments,
    "unknown": report_unknown,
    "timeout": cut_off,
    "malformed": discard_malformed,
    "status": change_status,
    "restart": survive_restart,
    "stop": stop,
}


async def go_through(steps: Mapping[str, Step], stage: Stage) -> list[Result]:
    """Run the steps in order."""
    results: list[Result] = []
    for number, (name, step) in enumerate(steps.items(), 1):
        title = stage.texts[f"step_{name}"]
        stage.screen.heading(f"{number}/{len(steps)} {title}")
        results.append(Result(name, *await attempt(step, stage)))
    return results


async def attempt(step: Step, stage: Stage) -> tuple[Mark, str]:
    """Run one step and say how it ended."""
    try:
        with anyio.fail_after(STEP_DEADLINE):
            await step(stage)
    except Skipped as reason:
        mark, detail = Mark.SKIPPED, str(reason)
    except TimeoutError:
        mark, text = Mark.FAILED, stage.texts["not_seen"]
        detail = text.format(seconds=STEP_DEADLINE, what=stage.awaited)
    except (Surprise, BlsError) as error:
        mark, detail = Mark.FAILED, str(error)
    else:
        return Mark.SHOWN, ""
    stage.screen.text(detail)
    return mark, detail


@contextmanager
def find_place(environ: Mapping[str, str], texts: Texts) -> Generator[Place]:
    """Use the server of ``BLS_REDIS_URL``, or start one that survives ``kill -9``."""
    if url := environ.get("BLS_REDIS_URL"):
        token = secrets.token_hex(3)
        project = texts["project_on_your_server"].format(token=token)
        yield Place(url, project, None)
        return
    with DevServer(append_only=True) as server:
        yield Place(server.url, texts["project"], server)


async def play(place: Place, screen: Screen) -> int:
    """Run the whole story and give the exit code."""
    began = anyio.current_time()
    async with at_the_console(place, screen) as stage, stage.life:
        results = await go_through(STEPS, stage)
    return conclude(results, screen, anyio.current_time() - began)


@asynccontextmanager
async def at_the_console(place: Place, screen: Screen) -> AsyncGenerator[Stage]:
    """Open the console and watch the project as it does.

    Its keys are deleted at the end, if the server stays.
    """
    packed = anyio.Event()
    agent = make_orders(place.url, place.project, screen.texts, packed)
    async with Console(place.url) as console:
        await console.status(place.project)  # without Redis there is nothing to see
        stage = Stage(place, agent, console, screen, packed)
        try:
            async with anyio.create_task_group() as watching:
                watching.start_soon(stage.follow_logs)
                watching.start_soon(stage.follow_status)
                yield stage
                watching.cancel_scope.cancel()
        finally:
            if place.server is None:
                with anyio.move_on_after(TIDY_DEADLINE, shield=True):
                    await tidy_up(stage)


async def tidy_up(stage: Stage) -> None:
    """Delete the project's keys; name them where Redis refuses that."""
    try:
        await stage.console.forget(stage.place.project, force=True)
    except BlsError:
        keys = ", ".join(stage.place.keys)
        stage.screen.text(stage.texts["not_deleted"].format(keys=keys))


def conclude(results: Sequence[Result], screen: Screen, seconds: float) -> int:
    """Show the table and give the exit code: 0 only if no step has failed."""
    screen.heading(screen.texts["summary"])
    for result in results:
        screen.mark(result.mark, screen.texts[f"step_{result.name}"], result.detail)
    failed = sum(result.mark is Mark.FAILED for result in results)
    skipped = any(result.mark is Mark.SKIPPED for result in results)
    name = "some_failed" if failed else "some_skipped" if skipped else "all_shown"
    values = {"failed": failed, "count": len(results), "seconds": seconds}
    screen.text(screen.texts[name].format(**values))
    return 1 if failed else 0


async def serve(place: Place, screen: Screen) -> int:
    """Keep the agent running for other clients, and show what the console sees."""
    async with at_the_console(place, screen) as stage:
        stage.packed.set()
        show_hints(place, screen)
        await stage.agent.run()
        with anyio.move_on_after(FAREWELL_DEADLINE):
            await stage.shows(Status.OFFLINE)
    return 0


def show_hints(place: Place, screen: Screen) -> None:
    """Write commands for redis-cli, each on one line that can be copied."""
    status, console, control = place.keys
    url = place.url if place.server else '"$BLS_REDIS_URL"'
    screen.heading(screen.texts["serving"])
    for name, words in {
        "status": f"GET '{status}'",
        "logs": f"LRANGE '{console}' -5 -1",
        "command": f"""RPUSH '{control}' '{{"command":"reload","args":{{"force":true}}}}'""",
        "help": f"""RPUSH '{control}' '{{"command":"help"}}'""",
    }.items():
        screen.write(f"# {screen.texts[f'hint_{name}']}")
        screen.write(f"redis-cli -u {url} --raw {words}")
    screen.write("")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and give its exit code."""
    logging.getLogger("bls_agent").addHandler(logging.NullHandler())  # shown anyway
    given = sys.argv[1:] if arguments is None else arguments
    texts = load_texts("demo", find_language(given, os.environ))
    parser = make_parser(PROGRAM, texts["demo_help"], texts)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--serve", action="store_true", help=texts["opt_serve"])
    what.add_argument("--console", action="store_true", help=texts["opt_console"])
    options = parser.parse_args(given)
    out = terminal.Screen(sys.stdout, os.environ, needed=False)
    screen = Screen(out, texts)
    try:
        if options.console:
            return serve_fleet(screen, os.environ.get("BLS_REDIS_URL", ""))
        screen.text(texts["title"], "bold")
        with find_place(os.environ, texts) as place:
            whose = texts["our_server" if place.server else "your_server"]
            screen.text(whose.format(url=mask_url(place.url), project=place.project))
            return anyio.run(serve if options.serve else play, place, screen)
    except BlsError as error:
        parser.exit(2, f"{error}\n")
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
