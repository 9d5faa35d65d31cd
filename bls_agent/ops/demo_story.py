"""The story of the demo: an order service, and nine steps that put it to the test.

A step does something at one end, waits for what the console reads at the other, and
raises when that is not what the package promises. Nothing is believed that was not
read back from Redis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeAlias

import anyio
import anyio.to_thread

from bls_agent.agent import ProjectAgent
from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.wire import Wire
from bls_agent.console import Console
from bls_agent.core.codec import encode
from bls_agent.core.errors import BlsError, RedisUnavailableError
from bls_agent.core.keys import CONTROL, PROJECT_CONSOLE, PROJECT_STATUS
from bls_agent.core.settings import Settings
from bls_agent.devserver import DevServer
from bls_agent.ops.demo_screen import Screen, Watch
from bls_agent.ops.texts import Texts
from bls_agent.project.messages import Command, Outcome, OutcomeKind, Status

__all__ = ["STEPS", "Mark", "Place", "Result", "Stage", "go_through", "make_agent"]

STEP_DEADLINE: Final = 5.0  # seconds until a step has failed
STORY_DEADLINE: Final = 18.0  # seconds until the rest is not tried any more
SLOW_TIMEOUT: Final = 0.5
MEANWHILE: Final = (1, 2, 3)  # the records that are written while Redis is away
MALFORMED: Final = {
    "not_json": b"reload, please",
    "not_an_object": b'["reload"]',
    "not_utf8": b"\x1b[2J\x1b[31m\xff",
}


class Skipped(Exception):  # noqa: N818 - a signal: the step is not possible here
    """A step cannot be shown here; the text says why."""


class Surprise(Exception):  # noqa: N818 - a verdict, not an error of the package
    """What the console saw is not what a step promises; the text says what."""


class Mark(IntEnum):
    """How a step ended."""

    SHOWN = 0
    FAILED = 1
    SKIPPED = 2


@dataclass(frozen=True)
class Result:
    """A row of the table at the end."""

    name: str
    mark: Mark
    detail: str = ""


@dataclass(frozen=True)
class Place:
    """Where the demo is given.

    Attributes:
        url: The server.
        project: The project's name.
        server: The server, if it is ours to be killed.
    """

    url: str
    project: str
    server: DevServer | None

    @property
    def keys(self) -> list[str]:
        """The three keys of the project."""
        templates = (PROJECT_STATUS, PROJECT_CONSOLE, CONTROL)
        return [template.build(project=self.project) for template in templates]

    @asynccontextmanager
    async def wire(self) -> AsyncGenerator[Wire]:
        """A bare connection, for what a console does not do."""
        wire = Wire(Endpoint.of(self.url), "bls-demo")
        try:
            yield wire
        finally:
            await wire.aclose()


@dataclass
class Stage:
    """What the steps of the story share.

    Attributes:
        packed: Lets the handler of ``pack`` come to its end.
        life: Closes the agent at the end.
    """

    place: Place
    agent: ProjectAgent
    console: Console
    watch: Watch
    screen: Screen
    packed: anyio.Event
    life: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def texts(self) -> Texts:
        """The catalogue."""
        return self.screen.texts

    async def send(self, name: str, **args: object) -> Command:
        """Send a command as the console does."""
        self.screen.sent(f"{name} {encode(args).decode() if args else ''}")
        return await self.console.send(self.place.project, name, args)

    async def is_refused(self, name: str) -> None:
        """Send a command while Redis is away: refused, and surely not taken."""
        try:
            await self.send(name)
        except RedisUnavailableError as error:
            self.expect(str(error), holds=not error.ambiguous)
            self.screen.redis(self.texts["refused"].format(command=name))
        else:
            self.expect(name, holds=False)

    async def ended(self, command: Command, kind: OutcomeKind) -> Outcome:
        """Wait for a command's outcome, which has to be of this kind."""
        what = f"{command.command}: {kind.value}"
        outcome = (await self.watch.until(what, lambda: self.watch.outcomes(command)))[
            0
        ]
        self.expect(outcome.message, holds=outcome.kind is kind)
        return outcome

    async def shows(self, status: Status) -> None:
        """Wait until the console reads this status."""
        await self.watch.until(status.value, lambda: self.watch.status is status)

    def expect(self, what: str, *, holds: bool) -> None:
        """Fail the step if something does not hold."""
        if not holds:
            raise Surprise(self.texts["not_as_expected"].format(what=what))


def make_agent(place: Place, texts: Texts, packed: anyio.Event) -> ProjectAgent:
    """Make the order service: what a user of the package would write."""
    agent = ProjectAgent(place.project, redis=place.url, settings=Settings())

    @agent.command
    async def reload(*, force: bool = False) -> dict[str, int]:
        """Read the configuration again."""
        agent.log.info(texts["log_reloaded"], force=force)
        return {"rules": 42}

    @agent.command("import", timeout=SLOW_TIMEOUT)
    async def import_orders() -> None:
        """Take longer than allowed."""
        agent.log.info(texts["log_importing"])
        await anyio.sleep_forever()

    @agent.command
    async def pack(order: int) -> dict[str, int]:
        """Pack an order, which takes until the story lets it end."""
        agent.log.info(texts["log_packing"], order=order)
        await packed.wait()
        return {"packed": order}

    return agent


async def come_online(stage: Stage) -> None:
    """Open the agent: the console reads that it is there."""
    await stage.life.enter_async_context(stage.agent)
    await stage.shows(Status.ONLINE)


async def run_command(stage: Stage) -> None:
    """A good command: its handler writes a record, its result is reported."""
    command = await stage.send("reload", force=True)
    outcome = await stage.ended(command, OutcomeKind.SUCCEEDED)
    stage.expect(outcome.message, holds=outcome.result == {"rules": 42})
    stage.expect(outcome.message, holds=len(stage.watch.said_in(command)) == 1)


async def reject_arguments(stage: Stage) -> None:
    """Wrong arguments: turned down, each named, before the handler runs."""
    command = await stage.send("reload", force="yes", fast=1)
    outcome = await stage.ended(command, OutcomeKind.REJECTED)
    told = outcome.message
    stage.expect(told, holds="'force'" in told and "'fast'" in told)
    stage.expect(told, holds=not stage.watch.said_in(command))


async def report_unknown(stage: Stage) -> None:
    """A command that nobody knows."""
    await stage.ended(await stage.send("relaod"), OutcomeKind.UNKNOWN)


async def cut_off(stage: Stage) -> None:
    """A handler that takes too long: cancelled, and the next command runs."""
    command = await stage.send("import")
    outcome = await stage.ended(command, OutcomeKind.TIMED_OUT)
    stage.expect(outcome.message, holds=len(stage.watch.said_in(command)) == 1)


async def discard_malformed(stage: Stage) -> None:
    """Three messages that are no commands: reported, thrown away, and on it goes."""
    for payload in MALFORMED.values():
        stage.screen.sent(payload.decode("utf-8", "backslashreplace"))
    control = CONTROL.build(project=stage.place.project)
    async with stage.place.wire() as wire:
        await wire.call("RPUSH", control, *MALFORMED.values())
    await stage.ended(await stage.send("ping"), OutcomeKind.SUCCEEDED)
    reasons = stage.watch.discarded()
    stage.expect(", ".join(reasons), holds=reasons == list(MALFORMED))


async def change_status(stage: Stage) -> None:
    """The service says how it is, and the console reads it."""
    for status in (Status.ERROR, Status.ONLINE):
        stage.agent.set_status(status)
        await stage.shows(status)


async def survive_restart(stage: Stage) -> None:
    """Kill Redis while one command runs, one waits, and records are written."""
    server = stage.place.server
    if server is None:
        raise Skipped(stage.texts["not_our_server"])
    packing = await stage.send("pack", order=7)
    await stage.watch.until("pack", lambda: stage.watch.said_in(packing))
    waiting = await stage.send("reload")
    await anyio.to_thread.run_sync(server.kill)
    stage.screen.redis(stage.texts["killed"].format(pid=server.pid))
    await stage.watch.until("Redis", lambda: not stage.watch.reachable)
    for number in MEANWHILE:
        stage.agent.log.info(stage.texts["log_meanwhile"], number=number)
    stage.packed.set()
    await stage.is_refused("reload")
    await anyio.to_thread.run_sync(server.restart)
    stage.screen.redis(stage.texts["restarted"].format(pid=server.pid))
    late = await stage.send("reload")
    for command in (packing, waiting, late):
        await stage.ended(command, OutcomeKind.SUCCEEDED)
    await check_once(stage, (packing, waiting, late))


async def check_once(stage: Stage, commands: Sequence[Command]) -> None:
    """Read the whole list again: each command ended once, each record stands once."""
    entries = await stage.console.logs(stage.place.project, 1_000)
    text = stage.texts["log_meanwhile"]
    numbers = [item.metadata.get("number") for item in entries if item.message == text]
    stage.expect(f"{text}: {numbers}", holds=numbers == list(MEANWHILE))
    ended = Counter(item.outcome.command_id for item in entries if item.outcome)
    for command in commands:
        stage.expect(command.command, holds=ended[command.id] == 1)


async def stop(stage: Stage) -> None:
    """Close the agent: its last word stays."""
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
    """Take the steps in their order; those that time does not allow have failed."""
    results: list[Result] = []
    with anyio.move_on_after(STORY_DEADLINE):
        for number, (name, step) in enumerate(steps.items(), 1):
            title = stage.texts[f"step_{name}"]
            stage.screen.heading(f"{number}/{len(steps)} {title}")
            results.append(Result(name, *await attempt(step, stage)))
    late = stage.texts["not_reached"].format(seconds=STORY_DEADLINE)
    missing = list(steps)[len(results) :]
    return [*results, *(Result(name, Mark.FAILED, late) for name in missing)]


async def attempt(step: Step, stage: Stage) -> tuple[Mark, str]:
    """Take one step and say how it ended."""
    try:
        with anyio.fail_after(STEP_DEADLINE):
            await step(stage)
    except Skipped as reason:
        mark, detail = Mark.SKIPPED, str(reason)
    except TimeoutError:
        mark, text = Mark.FAILED, stage.texts["not_seen"]
        detail = text.format(seconds=STEP_DEADLINE, what=stage.watch.awaited)
    except (Surprise, BlsError) as error:
        mark, detail = Mark.FAILED, str(error)
    else:
        return Mark.SHOWN, ""
    stage.screen.text(detail)
    return mark, detail
