"""Judges a console of the console protocol. The judge takes the agent's place.

The program is a command line that sends one command and ends. The placeholders
``{redis}``, ``{project}``, ``{command}`` and ``{args}`` (a JSON object) are replaced.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import anyio

from bls_agent.core.codec import encode, encode_sorted, parse_timestamp
from bls_agent.ops.conformance.judge import (
    Check,
    Fault,
    Result,
    Verdict,
    Wire,
    read_record,
)
from bls_agent.ops.conformance.program import Program
from bls_agent.ops.conformance.vectors import Vector

LAST_OUTPUT: Final = 1.0  # seconds for the output that a program wrote at its end
BEFORE: Final = b'{"command":"waiting"}'  # a command that waits in the list already


class ConsoleJudge:
    """Judges one program by vectors. The program is started for each vector."""

    def __init__(self, wire: Wire, redis: str, command: str) -> None:
        self.wire = wire
        self._redis = redis
        self._command = command

    async def judge(self, vectors: Sequence[Vector]) -> AsyncIterator[Verdict]:
        for vector in vectors:
            await self.wire.clear()
            fault = await CHECKS[vector.check](self, vector)
            yield Verdict(vector, Result.FAILED if fault else Result.PASSED, fault)

    async def send(self, vector: Vector) -> bytes | Fault:
        """Run the program, which sends the vector's command. Return the sent bytes."""
        await self.wire.push(BEFORE)
        values = {
            "redis": self._redis,
            "project": self.wire.project,
            "command": vector.values["command"],
            "args": encode(vector.values["args"]).decode(),
        }
        if fault := await self._run(values):
            return fault
        kind = await self.wire.type_of(self.wire.control_key)
        if kind != "list":
            return Fault("wrong_type", {"key": self.wire.control_key, "type": kind})
        found: list[bytes] = await self.wire.call(
            "LRANGE", self.wire.control_key, 0, -1
        )
        if found[:1] != [BEFORE] or len(found) != 2:  # noqa: PLR2004 - and the new one
            return Fault("not_at_the_tail", {"key": self.wire.control_key})
        return found[1]

    async def _run(self, values: dict[str, str]) -> Fault | None:
        """Run the program, and kill it if it does not end in time."""
        program = Program(self._command, values)
        async with anyio.create_task_group() as tasks, program:
            program.start(tasks)
            await program.wait()
            # The program may have started a process that keeps its output open.
            tasks.cancel_scope.deadline = anyio.current_time() + LAST_OUTPUT
        if program.exit_code == 0:
            return None
        shown = {"code": program.exit_code, "output": program.output}
        return Fault("send_failed", shown)


async def check_sent(judge: ConsoleJudge, vector: Vector) -> Fault | None:
    sent = await judge.send(vector)
    if isinstance(sent, Fault):
        return sent
    record = read_record(sent)
    wanted: dict[str, Any] = {
        "command": vector.values["command"],
        "args": vector.values["args"],
    }
    if record is None:
        return Fault("bad_record", {"problem": "JSON", "record": repr(sent)})
    arguments: Any = record.get("args")
    arguments = {} if arguments is None else arguments
    seen = {"command": record.get("command"), "args": arguments}
    # The JSON is compared, too, because 1, 1.0 and True are equal in Python. It is
    # compared second, because encode_sorted() cannot write every integer.
    same = seen == wanted and encode_sorted(seen) == encode_sorted(wanted)
    return None if same else Fault("other_command", {"seen": seen})


async def check_fields(judge: ConsoleJudge, vector: Vector) -> Fault | None:
    """Send two commands. Their fields must be valid, and their ids must differ."""
    ids: list[object] = []
    for _ in range(2):
        await judge.wire.clear()
        sent = await judge.send(vector)
        if isinstance(sent, Fault):
            return sent
        record = read_record(sent) or {}
        good = {
            "id": isinstance(record.get("id"), str) and bool(record["id"]),
            "timestamp": parse_timestamp(record.get("timestamp")) is not None,
            "source": isinstance(record.get("source"), str),
        }
        if problem := next((name for name, fine in good.items() if not fine), ""):
            return Fault("bad_record", {"problem": problem, "record": repr(sent)})
        ids.append(record["id"])
    return Fault("same_id") if ids[0] == ids[1] else None


async def check_compact(judge: ConsoleJudge, vector: Vector) -> Fault | None:
    sent = await judge.send(vector)
    if isinstance(sent, Fault):
        return sent
    record = read_record(sent)
    compact = record is not None and sent == encode(record)
    return None if compact else Fault("not_compact")


CHECKS: Final[dict[str, Check]] = {
    "sent": check_sent,
    "sent_fields": check_fields,
    "sent_compact": check_compact,
}
