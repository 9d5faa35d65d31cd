"""Judges an agent of the console protocol. The judge acts as console and network.

The program has to run the command ``echo``, which writes a log record that contains the
argument ``word``. The function of each check returns ``None`` if the program passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import anyio
from anyio.abc import TaskGroup

from bls_agent.core.codec import JSONObject, parse_timestamp
from bls_agent.ops.conformance.judge import (
    WORD,
    Check,
    Fault,
    Result,
    Verdict,
    Wire,
    happens,
    make_command,
    make_word,
    read_record,
)
from bls_agent.ops.conformance.program import Program
from bls_agent.ops.conformance.vectors import Vector
from bls_agent.project.log.record import RECORD_LIMIT
from bls_agent.project.messages import Level, Status
from bls_agent.testing.link import Direction, FaultProxy, Refuse

STATUSES: Final = frozenset(status.value for status in Status)
LEVELS: Final = tuple(level.value for level in Level)
# A command may have less than 64 KB. JSON writes a backslash as two bytes, and as four in a
# record whose message quotes the arguments; such a record is too long.
PADDING: Final = "\\" * 31_000
LONGEST_LIFE: Final = 300  # seconds; longest TTL of a status
# A deleted status must be written again within this many times the patience.
REFRESH: Final = 7
START: Final = 20.0  # seconds within which a program has to connect
AWAY: Final = 3.0  # seconds for which the link is broken
# A dead connection must be replaced within this many times the patience.
RECOVERY: Final = 12
MANY: Final = 20  # commands whose order is checked
ALIKE: Final = 5  # faults of one check after which the rest of the check is skipped


class AgentJudge:
    """Runs the checks of vectors on one program. Restarts the program after a fault."""

    def __init__(
        self, wire: Wire, program: Program, link: FaultProxy, tasks: TaskGroup
    ) -> None:
        self.wire = wire
        self.program = program
        self.link = link
        self._tasks = tasks
        self._faults: Counter[str] = Counter()

    async def judge(self, vectors: Sequence[Vector]) -> AsyncIterator[Verdict]:
        """Start the program, and yield verdicts in the order of ``CHECKS``."""
        ranks = [*CHECKS]
        await self._restart()
        for vector in sorted(vectors, key=lambda one: ranks.index(one.check)):
            if self._faults[vector.check] >= ALIKE:
                alike = Fault("alike", {"count": ALIKE})
                yield Verdict(vector, Result.SKIPPED, alike)
                continue
            if self.program.exit_code is not None:
                await self._restart()
            fault = await CHECKS[vector.check](self, vector)
            if fault is None:
                yield Verdict(vector, Result.PASSED)
                continue
            self._faults[vector.check] += 1
            await self._restart()
            yield Verdict(vector, Result.FAILED, fault)

    async def _restart(self) -> None:
        await self.link.heal()
        await self.program.kill()
        await self.wire.clear()
        await self.start()
        await happens(self.is_shown, self.wire.patience)

    async def start(self) -> None:
        """Start the program, and wait until it has connected or ended."""
        await self.program.kill()  # what a program that has ended left behind
        await self.break_links()
        self.program.start(self._tasks)
        await happens(self._has_connected, START)

    async def break_links(self) -> None:
        """Break the links of the program that was stopped.

        A deaf link would stay, and Redis would send commands to it.
        """
        self.link.break_all()

        async def are_gone() -> bool:
            return not self.link.connections

        await happens(are_gone, self.wire.patience)

    async def _has_connected(self) -> bool:
        return bool(self.link.connections) or self.program.exit_code is not None

    async def is_shown(self) -> bool:
        return (
            await self.wire.status() in STATUSES or self.program.exit_code is not None
        )

    def ended(self) -> Fault | None:
        """Return a fault if the program has ended by itself."""
        code = self.program.exit_code
        return None if code is None else Fault("ended", {"code": code})

    async def runs(self, word: str, within: float | None = None) -> Fault | None:
        """Return a fault if the command ``echo`` with this word has no effect."""
        patience = self.wire.patience if within is None else within
        if await self.wire.sees(word, patience):
            return None
        return self.ended() or Fault("not_run", {"seconds": f"{patience:g}"})


async def check_status_written(judge: AgentJudge, _: Vector) -> Fault | None:
    if await happens(judge.is_shown, 2 * judge.wire.patience):
        return judge.ended()
    kind = await judge.wire.type_of(judge.wire.status_key)
    if kind not in ("none", "string"):
        return Fault("wrong_type", {"key": judge.wire.status_key, "type": kind})
    shown = await judge.wire.status()
    return Fault("no_status", {"key": judge.wire.status_key, "value": shown})


async def check_echo(judge: AgentJudge, vector: Vector) -> Fault | None:
    """Push an ``echo`` in the form of the vector. The command has to run."""
    word = make_word()
    await judge.wire.push(vector.message.replace(WORD, word.encode()))
    return await judge.runs(word)


async def check_log(judge: AgentJudge, _: Vector) -> Fault | None:
    first = await judge.wire.echo()
    if fault := await judge.runs(first):
        return fault
    second = await judge.wire.echo()
    if fault := await judge.runs(second):
        return fault
    before, after = [await judge.wire.positions(one) for one in (first, second)]
    return None if before[0] < after[0] else Fault("newest_not_last")


async def check_order(judge: AgentJudge, _: Vector) -> Fault | None:
    alone = await judge.wire.echo()
    if fault := await judge.runs(alone):
        return fault
    words = [make_word() for _ in range(MANY)]
    await judge.wire.push(*(make_command("echo", {"word": one}) for one in words))
    last = await judge.wire.echo()
    if fault := await judge.runs(last):
        return fault
    often = len(await judge.wire.positions(alone))
    found = [await judge.wire.positions(one) for one in words]
    for at, places in enumerate(found):
        if len(places) != often:
            text = "lost" if len(places) < often else "repeated"
            return Fault(text, {"number": at + 1, "count": MANY})
    first = [places[0] for places in found]
    return None if first == sorted(first) else Fault("out_of_order")


async def check_emptied(judge: AgentJudge, _: Vector) -> Fault | None:
    """Send a valid command. After it has run, the control list has to be empty."""
    if fault := await judge.runs(await judge.wire.echo()):
        return fault

    async def is_empty() -> bool:
        return await judge.wire.waiting() == 0

    if await happens(is_empty, judge.wire.patience):
        return None
    return Fault("still_waiting", {"key": judge.wire.control_key})


async def check_message(judge: AgentJudge, vector: Vector) -> Fault | None:
    """Push the vector's message. A valid command after it has to run."""
    await judge.wire.push(vector.message)
    return await check_emptied(judge, vector)


async def check_recorded(judge: AgentJudge, vector: Vector) -> Fault | None:
    """Push a malformed message. The program has to log an error."""
    before = set(await judge.wire.records())
    await judge.wire.push(vector.message)

    async def is_recorded() -> bool:
        new = [
            read_record(one) for one in await judge.wire.records() if one not in before
        ]
        return any(one is not None and one.get("level") == "error" for one in new)

    if await happens(is_recorded, judge.wire.patience):
        return None
    return judge.ended() or Fault("not_recorded")


async def check_outcome(judge: AgentJudge, vector: Vector) -> Fault | None:
    """Push a message. Its outcome record must have the fields of the vector."""
    await judge.wire.call("DEL", judge.wire.log_key)
    await judge.wire.push(vector.message)
    if fault := await judge.runs(await judge.wire.echo()):
        return fault
    expected: JSONObject = vector.values["outcome"]
    outcomes = [
        found
        for record in map(read_record, await judge.wire.records())
        if record is not None and "outcome" in (found := _object_in(record, "metadata"))
    ]
    if not outcomes:
        return Fault("no_outcome")
    error = _object_in(outcomes[0], "error")
    seen = {"outcome": outcomes[0]["outcome"]}
    if "reason" in expected:
        seen["reason"] = error.get("reason")
    if "fields" in expected:
        fields = error.get("fields")
        is_object = isinstance(fields, dict)
        seen["fields"] = sorted(cast("JSONObject", fields)) if is_object else fields
    return None if seen == expected else Fault("other_outcome", {"seen": seen})


def _object_in(record: JSONObject, name: str) -> JSONObject:
    found = record.get(name)
    return cast("JSONObject", found) if isinstance(found, dict) else {}


async def check_builtin(judge: AgentJudge, vector: Vector) -> Fault | None:
    """Send a built-in command. Its outcome record has to report success."""
    command_id = make_word()
    await judge.wire.push(make_command(vector.values["command"], {}, command_id))
    if fault := await judge.runs(command_id):
        return fault
    for record in map(read_record, await judge.wire.records()):
        found = _object_in(record or {}, "metadata")
        if found.get("commandId") == command_id:
            seen = {"outcome": found.get("outcome")}
            good = seen["outcome"] == "succeeded"
            return None if good else Fault("other_outcome", {"seen": seen})
    return Fault("no_outcome")


async def check_records(judge: AgentJudge, _: Vector) -> Fault | None:
    """Check the form of every record of the log."""
    if fault := await judge.runs(await judge.wire.echo()):
        return fault
    for payload in await judge.wire.records():
        if problem := _problem_of(payload):
            shown = payload[:200].decode("utf-8", "replace")
            return Fault("bad_record", {"problem": problem, "record": shown})
    return None


def _problem_of(payload: bytes) -> str:
    """Return the name of a wrong field, or ``""`` if the record is correct."""
    record = read_record(payload)
    if record is None:
        return "JSON"
    rules: dict[str, Any] = {
        "timestamp": parse_timestamp(record.get("timestamp")) is not None,
        "level": record.get("level") in LEVELS,
        "message": isinstance(record.get("message"), str),
        "metadata": isinstance(record.get("metadata", {}), dict),
    }
    return next((name for name, good in rules.items() if not good), "")


async def check_record_size(judge: AgentJudge, _: Vector) -> Fault | None:
    word = await judge.wire.echo(padding=PADDING)
    if fault := await judge.runs(word):
        return fault
    longest = max(map(len, await judge.wire.records()))
    return Fault("long_record", {"size": longest}) if longest > RECORD_LIMIT else None


async def check_expires(judge: AgentJudge, _: Vector) -> Fault | None:
    life: int = await judge.wire.call("TTL", judge.wire.status_key)
    return None if 0 < life <= LONGEST_LIFE else Fault("no_ttl", {"ttl": life})


async def check_refreshed(judge: AgentJudge, _: Vector) -> Fault | None:
    await judge.wire.call("DEL", judge.wire.status_key)
    within = REFRESH * judge.wire.patience
    if await happens(judge.is_shown, within):
        return judge.ended()
    return Fault("not_refreshed", {"seconds": f"{within:g}"})


async def check_cut(judge: AgentJudge, _: Vector) -> Fault | None:
    judge.link.break_all()
    return await _recovers(judge, RECOVERY / 2 * judge.wire.patience)


async def check_silent(judge: AgentJudge, _: Vector) -> Fault | None:
    judge.link.deafen(*Direction)
    return await _recovers(judge, RECOVERY * judge.wire.patience)


async def _recovers(judge: AgentJudge, within: float) -> Fault | None:
    """Send a command each second until one runs.

    One command is not enough, because the server may send the command over the dead
    connection, where it is lost.
    """
    words: list[str] = []
    with anyio.move_on_after(within):
        while True:
            words.append(await judge.wire.echo())
            for word in words:
                if await judge.wire.sees(word, 1 / len(words)):
                    return None
    return judge.ended() or Fault("not_run", {"seconds": f"{within:g}"})


async def check_away(judge: AgentJudge, _: Vector) -> Fault | None:
    judge.link.break_all()
    async with judge.link.during(Refuse()):
        await anyio.sleep(AWAY)
        word = await judge.wire.echo()
    return await judge.runs(word, RECOVERY / 2 * judge.wire.patience)


async def check_waits(judge: AgentJudge, _: Vector) -> Fault | None:
    """Push a command while the program is stopped. The restarted program runs it."""
    await judge.program.stop()
    await judge.break_links()
    word = await judge.wire.echo()
    await judge.start()
    return await judge.runs(word, 2 * judge.wire.patience)


async def check_final(judge: AgentJudge, _: Vector) -> Fault | None:
    code = await judge.program.stop()
    if code is None:
        return Fault("not_ended", {"seconds": "10"})
    shown = await judge.wire.status()
    fault = Fault("not_offline", {"value": shown, "key": judge.wire.status_key})
    return None if shown == Status.OFFLINE.value else fault


# Each check, in the order in which vectors are tried.
CHECKS: Final[dict[str, Check]] = {
    "status_written": check_status_written,
    "expires": check_expires,
    "echo": check_echo,
    "log": check_log,
    "order": check_order,
    "emptied": check_emptied,
    "message": check_message,
    "recorded": check_recorded,
    "outcome": check_outcome,
    "builtin": check_builtin,
    "records": check_records,
    "record_size": check_record_size,
    "refreshed": check_refreshed,
    "cut": check_cut,
    "away": check_away,
    "silent": check_silent,
    "waits": check_waits,
    "final": check_final,
}


@asynccontextmanager
async def open_judge(wire: Wire, url: str, command: str) -> AsyncGenerator[AgentJudge]:
    """Yield a judge of a command line's program. Kill the program at the end."""
    async with anyio.create_task_group() as tasks, FaultProxy(url) as link:
        values = {"redis": link.url, "project": wire.project}
        async with Program(command, values) as program:
            yield AgentJudge(wire, program, link, tasks)
        tasks.cancel_scope.cancel()
