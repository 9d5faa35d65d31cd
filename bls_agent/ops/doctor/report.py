"""The doctor's report, which counts all findings and keeps the first ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from bls_agent.core.codec import cut_text
from bls_agent.core.keys import encode_key
from bls_agent.ops.doctor.rule import Finding, Severity
from bls_agent.ops.doctor.server import Facts
from bls_agent.ops.texts import Texts

LONGEST_KEY: Final = 1_200  # bytes of a key that are shown at most
KEPT: Final = 20  # findings of one rule and severity that are kept at most


def show_key(key: str) -> str:
    r"""Return a key as text, shortened; bytes that are not UTF-8 become ``\xNN``."""
    return cut_text(encode_key(key).decode("utf-8", "backslashreplace"), LONGEST_KEY)


@dataclass
class Group:
    """The findings of one rule and severity."""

    rule: str
    severity: Severity
    findings: list[Finding] = field(default_factory=list[Finding])  # the first 20
    count: int = 0  # number of all findings

    @property
    def more(self) -> int:
        """Number of findings that are counted but not kept."""
        return self.count - len(self.findings)


@dataclass(kw_only=True)
class Report:
    """All findings; the first 20 findings of each rule and severity are kept."""

    servers: list[Facts] = field(default_factory=list[Facts])
    project: str = ""  # the only project that was checked; empty for all
    # Number of keys for each name in `KEYS`, and for `""` (keys of no protocol).
    keys: Counter[str] = field(default_factory=Counter[str])
    seconds: float = 0.0
    _groups: dict[tuple[str, Severity], Group] = field(
        default_factory=dict[tuple[str, Severity], Group]
    )

    def add(self, finding: Finding | None) -> None:
        """Count a finding, and keep it if fewer than 20 of its kind are kept."""
        if finding is None:
            return
        place = (finding.rule, finding.severity)
        group = self._groups.setdefault(place, Group(*place))
        group.count += 1
        if len(group.findings) < KEPT:
            group.findings.append(finding)

    @property
    def groups(self) -> list[Group]:
        """The groups of findings, the worst severity first."""
        worst_first = list(Severity)
        return sorted(
            self._groups.values(),
            key=lambda group: (worst_first.index(group.severity), group.rule),
        )

    @property
    def seen(self) -> int:
        return self.keys.total()

    @property
    def foreign(self) -> int:
        return self.keys[""]

    @property
    def findings(self) -> list[Finding]:
        return [finding for group in self.groups for finding in group.findings]

    @property
    def healthy(self) -> bool:
        """Whether there is neither an error nor a warning; notes do not count."""
        return not any(group.severity.is_fault for group in self.groups)

    def count(self, severity: Severity) -> int:
        """Return how many findings have this severity, including those not kept."""
        return sum(group.count for group in self.groups if group.severity is severity)

    def to_dict(self) -> dict[str, Any]:
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
            "project": self.project,
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
    """The texts of a finding: what is wrong, what the protocol requires, what to do."""

    wrong: str
    contract: str
    remedy: str


def word(finding: Finding, texts: Texts) -> Words:
    """Return the texts of a finding from the catalogue ``doctor``."""
    names = (f"{finding.rule}_{part}" for part in Words._fields)
    return Words(*(texts[name].format_map(finding.values) for name in names))
