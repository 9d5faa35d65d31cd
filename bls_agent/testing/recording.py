"""Records the commands, log records and counters of an agent during a test."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from bls_agent.agent import ProjectAgent
from bls_agent.connection.endpoint import Endpoint
from bls_agent.core.codec import JSONObject, JSONValue
from bls_agent.project.agent_state import state_of
from bls_agent.project.commands.observer import OnEnd, TakenCommand
from bls_agent.project.invocation import is_invoked
from bls_agent.project.log.record import AnyRecord
from bls_agent.project.messages import Outcome, OutcomeKind
from bls_agent.project.stats import AgentStats

# Outcomes that no test has to check. A command that still runs when the test ends is
# cancelled, and a duplicate has been run before.
EXPECTED: Final = frozenset(
    {OutcomeKind.SUCCEEDED, OutcomeKind.CANCELLED, OutcomeKind.DUPLICATE}
)


@dataclass(eq=False)
class RecordedCommand:
    """A command that the agent has taken.

    Attributes:
        command: The command's name.
        args: The arguments as they were sent.
        id: The command's id.
        outcome: How the command ended; ``None`` while it runs.
        exception: The exception that the handler, a middleware or the check of the
            arguments raised.
        seen: Whether the test has checked the outcome.
    """

    command: str
    args: JSONObject
    id: str
    outcome: Outcome | None = None
    exception: BaseException | None = None
    seen: bool = False

    def __str__(self) -> str:
        """Return a line such as ``reload(force=True): succeeded``, or with an error."""
        end = "running" if self.outcome is None else self.outcome.kind.value
        error = self.outcome.error if self.outcome is not None else {}
        reason = f" ({error.get('type')}: {error.get('message')})" if error else ""
        return f"{self.command}({join(self.args)}): {end}{reason}"


class Recording:
    """Records what an agent does while it runs on the server of a test.

    Attributes:
        commands: The commands that the agent has taken, oldest first.
        records: The log records, oldest first.
    """

    def __init__(self, agent: ProjectAgent) -> None:
        self.commands: list[RecordedCommand] = []
        self.records: list[AnyRecord] = []
        self._agent = agent
        self._seen = self._newest = agent.stats()

    def begin(self, taken: TakenCommand) -> OnEnd:
        """Record a command that came over Redis, before the agent runs the command."""
        args: JSONValue = taken.message.fields.get("args")
        args = args if isinstance(args, dict) else {}
        command = RecordedCommand(taken.command, args, taken.id)
        if not is_invoked():
            self.commands.append(command)

        def end(outcome: Outcome, error: BaseException | None) -> None:
            command.outcome, command.exception = outcome, error

        return end

    @contextmanager
    def on(self, endpoint: Endpoint) -> Generator[None]:
        """Connect the agent to an endpoint and record it, until the block ends.

        At the end, waiting log records are dropped, because the next test has another
        Redis. They are no finding.
        """
        state, fields = state_of(self._agent), vars(self._agent)
        stream, board = state.stream, state.board
        before, put = fields["_endpoint"], stream.put
        board.forget_sources()
        _, status, reason = board.worst_source(time.monotonic())

        def record(item: AnyRecord) -> None:
            self.records.append(item)
            put(item)

        fields["_endpoint"], stream.put = endpoint, record
        state.observers.add(self)
        try:
            yield
        finally:
            fields["_endpoint"], stream.put = before, put
            state.observers.remove(self)
            board.forget_sources()
            board.set(board.HOST, status, reason=reason)
            self.count(faults=self._newest.faults)
            if not stream.delivery.running:  # else another block still uses the agent
                stream.delivery.give_up("test_ended")
                stream.report_drops()  # the next session must not log these drops

    def look(self) -> AgentStats:
        """Return the counters. From now on, they count as checked by the test."""
        self._seen = self.count()
        return self._seen

    def count(self, faults: int | None = None) -> AgentStats:
        """Read the counters. ``faults`` replaces the number of faults among them."""
        stats = self._agent.stats()
        self._newest = stats if faults is None else replace(stats, faults=faults)
        return self._newest

    def findings(self) -> list[str]:
        """Describe the problems that the test has not checked, in this order.

        1. Commands that failed.
        2. Faults of the agent's own code.
        3. Log records that were dropped or could not be encoded, with the reasons.
        """
        project, seen, newest = self._agent.project, self._seen, self._newest
        found = [
            f"{project}: {command}"
            for command in self.commands
            if not (command.seen or command.outcome is None)
            and command.outcome.kind not in EXPECTED
        ]
        if faults := newest.faults - seen.faults:
            found.append(f"{project}: {faults} faults of the agent; see the log")
        counts = {
            "dropped": (newest.logs_dropped, seen.logs_dropped),
            "could not be encoded": (newest.logs_not_encoded, seen.logs_not_encoded),
        }
        for what, (now, before) in counts.items():
            if lost := Counter(now) - Counter(before):
                reasons = join(lost)
                found.append(f"{project}: log records {what}: {reasons}")
        return found


def join(values: Mapping[str, object]) -> str:
    """Return the values as text, in the form ``force=True, scope='all'``."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
