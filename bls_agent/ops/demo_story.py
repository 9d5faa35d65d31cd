"""The story of the demo: an order service, and nine steps that put it to the test.

A step acts at one end, waits for what the console reads at the other, and raises when
the package breaks a promise; only what was read back from Redis counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias, TypeVar

import anyio
import anyio.to_thread

from bls_agent.agent import ProjectAgent
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Endpoint
from bls_agent.console import Console
from bls_agent.core.codec import JSONValue, cut_text, encode
from bls_agent.core.errors import BlsError, RedisUnavailableError
from bls_agent.core.keys import CONTROL, PROJECT_CONSOLE, PROJECT_STATUS
from bls_agent.core.settings import Settings
from bls_agent.devserver import DevServer
from bls_agent.ops import terminal
from bls_agent.ops.terminal import (
    LEVEL_STYLES,
    STATUS_STYLES,
    clock_of,
    metadata_text,
)
from bls_agent.ops.texts import Texts
from bls_agent.project.messages import (
    Command,
    LogEntry,
    Outcome,
    OutcomeKind,
    Status,
)

__all__ = [
    "STEPS",
    "Mark",
    "Place",
    "Result",
    "Screen",
    "Stage",
    "go_through",
    "make_agent",
]

STEP_DEADLINE: Final = 5.0  # seconds until a step has failed
SLOW_TIMEOUT: Final = 0.5
MEANWHILE: Final = (1, 2, 3)  # the records that are written while Redis is away
MALFORMED: Final = {
    "not_json": b"reload, please",
    "not_an_object": b'["reload"]',
    "not_utf8": b"\x1b[2J\x1b[31m\xff",
}
T = TypeVar("T")

TIME_COLUMNS: Final = 8
LABEL_COLUMNS: Final = 6
LOOK_INTERVAL: Final = 0.05  # seconds between two looks of the console
HANGING: Final = TIME_COLUMNS + LABEL_COLUMNS + 4
LONGEST_METADATA: Final = 400  # bytes of a record's metadata that are shown
MARKS: Final = ("✓✗-", "√\N{MULTIPLICATION SIGN}-", "+x-")  # the first that it knows
LONGEST_MESSAGE: Final = 2_000
UNTOLD: Final = frozenset({"agent", "commandId"})

STYLES: Final = ("green", "red", "yellow")  # of the marks


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
        """Give the records that a command's handler has written."""
        return [
            entry
            for entry in self.entries
            if entry.metadata.get("commandId") == command.id and not entry.outcome
        ]

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


class Screen:
    """Lines for people: time, label, text."""

    def __init__(self, out: terminal.Screen, texts: Texts) -> None:
        self._out = out
        self.texts = texts

    def heading(self, text: str) -> None:
        """Begin a part."""
        self.write("")
        self.text(text, "bold")

    def text(self, text: str, style: str = "") -> None:
        """Write a paragraph."""
        self._out.row([(text, style)], [self._out.columns])

    def entry(self, entry: LogEntry) -> None:
        """Write a log record that the console has read."""
        clock = clock_of(entry.timestamp, "%H:%M:%S", TIME_COLUMNS)
        style = LEVEL_STYLES[entry.level]
        self._event(entry.level.value, _text_of(entry), style, clock)

    def status(self, status: Status | None) -> None:
        """Write the status that the console has read."""
        label = self.texts["label_status"]
        if status is None:
            self._event(label, self.texts["no_status"], "dim")
            return
        meaning = self.texts[f"status_{status.name}"]
        shown = status.value if meaning == status else f"{status.value} ({meaning})"
        self._event(label, shown, STATUS_STYLES[status])

    def sent(self, text: str) -> None:
        """Write a command that is sent."""
        self._event(self.texts["label_send"], text, "bold")

    def redis(self, text: str) -> None:
        """Write what happens to Redis itself."""
        self._event(self.texts["label_redis"], text, "yellow")

    def mark(self, mark: Mark, title: str, detail: str) -> None:
        """Write a row of the table at the end."""
        known = next(marks for marks in MARKS if self._out.encodable(marks) == marks)
        widths = [1, self._out.columns - 3]
        self._out.row([(known[mark], STYLES[mark]), title], widths)
        if detail:
            self._out.row(["", detail], widths)

    def write(self, line: str) -> None:
        """Write a line unchanged."""
        self._out.write(line)

    def _event(self, label: str, text: str, style: str, clock: str = "") -> None:
        clock = clock or datetime.now(UTC).astimezone().strftime("%H:%M:%S")
        widths = [TIME_COLUMNS, LABEL_COLUMNS, self._out.columns - HANGING]
        self._out.row([(clock, "dim"), (label, style), text], widths)


def _text_of(entry: LogEntry) -> str:
    outcome = entry.outcome
    told: dict[str, JSONValue] = {}
    if outcome is None:
        told = {key: item for key, item in entry.metadata.items() if key not in UNTOLD}
    elif outcome.succeeded and outcome.result is not None:
        told = {"result": outcome.result}
    elif "firstBytes" in outcome.error:
        told = {"firstBytes": outcome.error["firstBytes"]}
    pairs = metadata_text(told.items())
    message = cut_text(entry.message, LONGEST_MESSAGE)
    return f"{message}  {cut_text(pairs, LONGEST_METADATA)}".rstrip()
