"""What the calls of a health check mean: decisions, no Redis, no waiting.

Which checks there are is in ``health_checks.py``; they are called in
``health_monitor.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bls_agent.project.log.logs import describe_error
from bls_agent.project.state.health_checks import FAILURES

__all__ = ["Alarm", "Failure", "HealthState", "Recovery"]


@dataclass(frozen=True)
class Failure:
    """Why a call counts as failed.

    Attributes:
        type: One word, or the exception's type.
        message: What happened.
        error: The exception, if there was one.
    """

    type: str
    message: str
    error: BaseException | None = None

    def describe(self) -> dict[str, str]:
        """Tell it as the ``error`` object of a record."""
        if self.error is not None:
            return describe_error(self.error)
        return {"type": self.type, "message": self.message}


@dataclass(frozen=True)
class Alarm:
    """The status has to become 故障."""

    failure: Failure
    failures: int


@dataclass(frozen=True)
class Recovery:
    """The fault is over; it lasted this many seconds, from its first failure on."""

    seconds: float
    failures: int


@dataclass
class HealthState:
    """How a check has been doing: decides, and does nothing.

    Attributes:
        limit: Failures in a row that are an alarm.
        failures: Failures in a row until now.
        alarmed: Whether the alarm was given and is not over.
    """

    limit: int = FAILURES
    failures: int = 0
    alarmed: bool = False
    _since: float = field(default=0.0, repr=False)

    def note(self, failure: Failure | None, now: float) -> Alarm | Recovery | None:
        """Note the end of a call and say what to do.

        Args:
            failure: Why it failed; ``None`` if it was good.
            now: Monotonic seconds.
        """
        if failure is not None:
            self._since = self._since if self.failures else now
            self.failures += 1
            if self.alarmed or self.failures < self.limit:
                return None
            self.alarmed = True
            return Alarm(failure, self.failures)
        failures, self.failures = self.failures, 0
        alarmed, self.alarmed = self.alarmed, False
        return Recovery(now - self._since, failures) if alarmed else None
