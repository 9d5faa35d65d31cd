"""A finding in words: what is wrong, what the contract says, what to do."""

from __future__ import annotations

from typing import NamedTuple

from bls_agent.ops.doctor.rule import Finding
from bls_agent.ops.texts import Texts

__all__ = ["Words", "word"]


class Words(NamedTuple):
    """What people read of a finding."""

    wrong: str
    contract: str
    remedy: str


def word(finding: Finding, texts: Texts) -> Words:
    """Put a finding into words.

    Args:
        finding: What was found; what it quotes may hold anything.
        texts: One language of the catalogue ``doctor``.
    """
    values = dict(finding.values)
    if weaker := values.get("weaker"):  # a sentence of ours: it has a text, too
        values["weaker"] = texts[weaker]
    said = (
        texts[f"{finding.rule}_{part}"].format_map(values) for part in Words._fields
    )
    return Words(*said)
