"""What the doctor found: counted exactly, shown within bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from bls_agent.core.codec import cut_text
from bls_agent.core.keys import encode_key
from bls_agent.ops.doctor.access import Role
from bls_agent.ops.doctor.rule import Finding, Severity
from bls_agent.ops.doctor.server import Facts
from bls_agent.ops.texts import Texts

__all__ = ["Group", "Report", "Tally", "Words", "show_key", "word"]

LONGEST_KEY: Final = 1_200  # bytes of a key that are shown
KEPT: Final = 20  # findings of one rule that are kept


def show_key(key: str) -> str:
    r"""Write a key as text; bytes that are not UTF-8 as ``\xNN``, a long one cut."""
    return cut_text(encode_key(key).decode("utf-8", "backslashreplace"), LONGEST_KEY)


@dataclass
class Group:
    """The findings of one rule and severity."""

    rule: str
    severity: Severity
    findings: list[Finding] = field(default_factory=list[Finding])  # the first ones
    count: int = 0  # of all

    @property
    def more(self) -> int:
        """How many findings are counted and not kept."""
        return self.count - len(self.findings)


class Tally:
    """Collects findings; of each rule the first 20 of each severity are kept."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, Severity], Group] = {}

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it if there is room."""
        place = (finding.rule, finding.severity)
        group = self._groups.setdefault(place, Group(*place))
        group.count += 1
        if len(group.findings) < KEPT:
            group.findings.append(finding)

    @property
    def groups(self) -> list[Group]:
        """The findings by rule, the worst first."""
        worst_first = list(Severity)
        return sorted(
            self._groups.values(),
            key=lambda group: (worst_first.index(group.severity), group.rule),
        )


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found.

    Attributes:
        groups: The findings by rule, the worst first.
        servers: The facts of each server.
        user: The doctor's user (ACL WHOAMI); ``""`` where that is refused.
        project: The one project that was checked, ``""`` for all.
        tried: The project in which the rights were tried; ``""`` if none.
        roles: What the user's rights allow in that project.
        keys: How many keys were seen, by row; ``""`` for those of no contract.
        seconds: How long it took.
    """

    groups: Sequence[Group]
    servers: Sequence[Facts]
    user: str = ""
    project: str = ""
    tried: str = ""
    roles: Sequence[Role] = ()
    keys: Counter[str] = field(default_factory=Counter[str])
    seconds: float = 0.0

    @property
    def seen(self) -> int:
        """How many keys were seen."""
        return self.keys.total()

    @property
    def foreign(self) -> int:
        """How many of the keys are of no contract."""
        return self.keys[""]

    @property
    def findings(self) -> list[Finding]:
        """The findings that were kept, the worst first."""
        return [finding for group in self.groups for finding in group.findings]

    @property
    def healthy(self) -> bool:
        """Whether there is neither an error nor a warning; notes do not count."""
        return not any(group.severity.is_fault for group in self.groups)

    def count(self, severity: Severity) -> int:
        """How many findings are as bad as this, with those that are not kept."""
        return sum(group.count for group in self.groups if group.severity is severity)

    def to_dict(self) -> dict[str, Any]:
        """Give all of it as plain values, for JSON."""
        return {
            "healthy": self.healthy,
            "counts": {str(severity): self.count(severity) for severity in Severity},
            "findings": [_group_to_dict(group) for group in self.groups],
            "keys": {
                "seen": self.seen,
                "foreign": self.foreign,
                "rows": {row: n for row, n in sorted(self.keys.items()) if row},
            },
            "servers": [_facts_to_dict(facts) for facts in self.servers],
            "user": self.user,
            "project": self.project,
            "rights": {
                "project": self.tried,
                "roles": {role.name: _role_to_dict(role) for role in self.roles},
            },
            "seconds": round(self.seconds, 3),
        }


def _group_to_dict(group: Group) -> dict[str, Any]:
    return {
        "rule": group.rule,
        "severity": str(group.severity),
        "count": group.count,
        "shown": [
            {"key": show_key(one.key), "source": one.source, "values": one.values}
            for one in group.findings
        ],
    }


def _facts_to_dict(facts: Facts) -> Mapping[str, object]:
    return {
        "address": facts.address,
        "family": facts.family if facts.info else "",
        "version": facts.version,
        "rttMs": round(facts.rtt * 1000, 3),
        "clockOffsetMs": round(facts.offset * 1000, 3),
    }


def _role_to_dict(role: Role) -> Mapping[str, object]:
    return {
        "possible": role.possible,
        "tried": role.tried,
        "missing": [trial.shown for trial in role.missing],
    }


class Words(NamedTuple):
    """The texts of a finding."""

    wrong: str
    contract: str
    remedy: str


def word(finding: Finding, texts: Texts) -> Words:
    """Find the texts of a finding in the catalogue ``doctor``."""
    values = dict(finding.values)
    if weaker := values.get("weaker"):  # a sentence of ours: it has a text, too
        values["weaker"] = texts[weaker]
    said = (
        texts[f"{finding.rule}_{part}"].format_map(values) for part in Words._fields
    )
    return Words(*said)
