"""What a doctor holds against a project's keys (contract 002), and against ours beside them."""

from __future__ import annotations

from typing import Final

from bls_agent.core.keys import INFLIGHT_LISTS, KEYS, OWNER
from bls_agent.core.names import place_beside
from bls_agent.ops.doctor.misencoded_keys import (
    find_twin,
    name_fault,
    quote_name,
    tidy_name,
)
from bls_agent.ops.doctor.rule import Question, Rule, Sample, Severity, Values, show
from bls_agent.ops.doctor.rules.project_commands import COMMAND_RULES
from bls_agent.ops.doctor.rules.project_records import RECORD_RULES
from bls_agent.project.messages import Status

__all__ = ["RULES"]

LAPSING: Final = 2.0  # seconds before a status vanishes

_STATES: Final = frozenset(status.value.encode() for status in Status)


def _unknown_status(sample: Sample) -> Values | None:
    if sample.value.strip() in _STATES:
        return None
    return {"shown": show(sample.value)}


def _status_in_blanks(sample: Sample) -> Values | None:
    value = sample.value
    if value in _STATES or value.strip() not in _STATES:
        return None
    return {"shown": show(repr(value.decode()))}


def _untimed_status(sample: Sample) -> Values | None:
    online = sample.value == Status.ONLINE.value.encode()
    return {} if online and sample.ttl is None else None


def _lapsing_status(sample: Sample) -> Values | None:
    if sample.ttl is None or sample.ttl >= LAPSING:
        return None
    return {"seconds": f"{sample.ttl:.1f}"}


def _twin(sample: Sample) -> Values | None:
    meant = find_twin(sample.key)
    return {"meant": show(meant)} if meant else None


def _broken_name(sample: Sample) -> Values | None:
    name = sample.fields["project"]
    return {"name": quote_name(name)} if name_fault(name) else None


def _tidied(sample: Sample) -> Question:
    row = KEYS[sample.row]
    return ("EXISTS", row.locate(project=tidy_name(sample.fields["project"])))


def _ask_for_tidied(sample: Sample) -> list[Question]:
    name = sample.fields["project"]
    tidy = "" if name.isascii() else tidy_name(name)
    return [_tidied(sample)] if tidy not in ("", name) else []


def _twin_name(sample: Sample) -> Values | None:
    """Find a name that looks like another one that is in use; broken ones are told."""
    if not _ask_for_tidied(sample) or name_fault(sample.fields["project"]):
        return None
    question = _tidied(sample)
    if sample.answers.get(question) != 1:
        return None
    return {"meant": show(question[1])}


def _owner_of(sample: Sample) -> Question:
    return ("EXISTS", OWNER.locate(place=place_beside(sample.key)))


def _membership(sample: Sample) -> Question:
    lists = INFLIGHT_LISTS.locate(place=sample.fields["place"])
    return ("SISMEMBER", lists, sample.key)


def _ask_about_inflight(sample: Sample) -> list[Question]:
    return [_owner_of(sample), _membership(sample)]


def _orphan(sample: Sample) -> Values | None:
    if sample.answers.get(_owner_of(sample)) != 0:
        return None
    return {"count": f"{sample.size:,}", "instance": show(sample.fields["instance"])}


def _unlisted(sample: Sample) -> Values | None:
    if sample.answers.get(_membership(sample)) != 0:
        return None
    return {"count": f"{sample.size:,}", "lists": show(_membership(sample)[1])}


def _count(sample: Sample) -> Values | None:
    return {"count": f"{sample.size:,}"}


def _never_ends(sample: Sample) -> Values | None:
    return {} if sample.ttl is None else None


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE
_PROJECT_ROWS: Final = ("project_status", "project_console", "control")

RULES: Final = (
    Rule("status-unknown", "project_status", _E, "002 §2.1", _unknown_status),
    Rule("status-blanks", "project_status", _W, "002 §2.1", _status_in_blanks),
    Rule("status-untimed", "project_status", _N, "002 §2.1", _untimed_status),
    Rule("status-lapsing", "project_status", _N, "002 §2.1", _lapsing_status),
    *RECORD_RULES,
    *COMMAND_RULES,
    Rule("twin-key", "", _E, "002 §1, §4", _twin),
    *(Rule("name-broken", row, _W, "002 §1", _broken_name) for row in _PROJECT_ROWS),
    *(
        Rule("twin-name", row, _W, "002 §1", _twin_name, _ask_for_tidied)
        for row in _PROJECT_ROWS
    ),
    Rule("inflight-orphan", "inflight", _W, "bls_agent", _orphan, _ask_about_inflight),
    Rule(
        "inflight-unlisted", "inflight", _W, "bls_agent", _unlisted, _ask_about_inflight
    ),
    Rule("dead-letters", "dead_letters", _W, "bls_agent", _count),
    Rule("lease-endless", "owner", _E, "bls_agent", _never_ends),
    Rule("roster-endless", "instances", _W, "bls_agent", _never_ends),
)
