"""What the doctor found: counted exactly, shown within bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from bls_agent.core.codec import cut_text
from bls_agent.core.keys import encode_key
from bls_agent.ops.doctor.access import Role
from bls_agent.ops.doctor.rule import Finding, Severity
from bls_agent.ops.doctor.server import Facts
from bls_agent.ops.texts import Texts

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


@dataclass(kw_only=True)
class Report:
    """What was found; of each rule the first 20 findings of each severity are kept."""

    servers: list[Facts] = field(default_factory=list[Facts])
    user: str = ""  # the doctor's (ACL WHOAMI); empty where that is refused
    project: str = ""  # the only one that was checked; empty for all
    tried: str = ""  # the project in which the rights were tried; empty if none
    roles: Sequence[Role] = ()  # what the user's rights allow in that project
    keys: Counter[str] = field(default_factory=Counter[str])  # by row; "": of none
    seconds: float = 0.0
    _groups: dict[tuple[str, Severity], Group] = field(
        default_factory=dict[tuple[str, Severity], Group]
    )

    def add(self, finding: Finding | None) -> None:
        """Count a finding, and keep it if there is room."""
        if finding is None:
            return
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
        """Return all of it as plain values, for JSON."""
        return {
            "healthy": self.healthy,
            "counts": {str(severity): self.count(severity) for severity in Severity},
            "findings": [_group_to_dict(group) for group in self.groups],
            "keys": {
                "seen": self.seen,
                "foreign": self.foreign,
                "rows": {row: n for row, n in sorted(self.keys.items()) if row},
            },
            "servers": [
                {
                    "address": facts.address,
                    "family": facts.family if facts.info else "",
                    "version": facts.version,
                    "rttMs": round(facts.rtt * 1000, 3),
                    "clockOffsetMs": round(facts.offset * 1000, 3),
                }
                for facts in self.servers
            ],
            "user": self.user,
            "project": self.project,
            "rights": {
                "project": self.tried,
                "roles": {
                    role.name: {
                        "possible": role.possible,
                        "tried": role.tried,
                        "missing": [trial.shown for trial in role.missing],
                    }
                    for role in self.roles
                },
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
    sentences = (
        texts[f"{finding.rule}_{part}"].format_map(values) for part in Words._fields
    )
    return Words(*sentences)
