"""What a doctor holds against console lists (contract 002, section 2.2)."""

from __future__ import annotations

from typing import Final

from bls_agent.connection.wire import client_name
from bls_agent.core.codec import JSONObject, JSONValue, parse_timestamp
from bls_agent.core.keys import INSTANCES, PROJECT_STATUS
from bls_agent.core.names import place_beside
from bls_agent.ops.doctor.rule import (
    Check,
    Question,
    Rule,
    Sample,
    Severity,
    Values,
    bad_items,
    bad_objects,
    bad_texts,
    is_no_text,
    lacks_zone,
    read_object,
    show,
)
from bls_agent.project.messages import Level

__all__ = ["RECORD_RULES", "SIZE_LIMIT", "is_no_object", "too_long"]

SIZE_LIMIT: Final = 65_536  # bytes of one message
CAP: Final = 50_000  # records; agents of this package keep 10,000
AHEAD: Final = 120.0  # seconds that a clock may be ahead of the server's
LEVELS: Final = frozenset(level.value for level in Level)
ROW: Final = "project_console"


def is_no_object(item: bytes) -> bool:
    """Tell text that is no JSON object; what is too long to be parsed counts as one."""
    if len(item) > SIZE_LIMIT or is_no_text(item):
        return False
    return read_object(item) is None


def _no_objects(sample: Sample) -> Values | None:
    if None not in sample.objects:
        return None
    return bad_items(is_no_object)(sample)


def too_long(sample: Sample) -> Values | None:
    """Find messages beyond the contract's 64 KB, read or only weighed."""
    longest = max(map(len, sample.items), default=0)
    longest = max(longest, int(sample.mean_bytes) if not sample.items else 0)
    return {"bytes": f"{longest:,}"} if longest > SIZE_LIMIT else None


def _lacks_time(record: JSONObject) -> bool:
    return parse_timestamp(record.get("timestamp")) is None


def _lacks_zone(record: JSONObject) -> bool:
    return lacks_zone(record.get("timestamp"))


def _is_ahead(sample: Sample) -> Values | None:
    newest: JSONObject = sample.records[-1] if sample.records else {}
    moment = parse_timestamp(newest.get("timestamp"))
    if moment is None or _lacks_zone(newest):
        return None
    ahead = moment.timestamp() - sample.now
    if ahead <= AHEAD:
        return None
    return {"seconds": f"{ahead:,.0f}", "shown": show(newest["timestamp"])}


def _has_other_level(record: JSONObject) -> bool:
    level = record.get("level")
    return not isinstance(level, str) or level not in LEVELS


def _lacks_message(record: JSONObject) -> bool:
    return not isinstance(record.get("message"), str)


def _has_odd_metadata(record: JSONObject) -> bool:
    return not isinstance(record.get("metadata", {}), dict)


def _is_uncapped(sample: Sample) -> Values | None:
    return {"length": f"{sample.size:,}"} if sample.size > CAP else None


def _roster_of(sample: Sample) -> Question:
    status = PROJECT_STATUS.locate(project=sample.fields["project"])
    return ("EXISTS", INSTANCES.locate(place=place_beside(status)))


def _two_agents(sample: Sample) -> Values | None:
    """Find two processes that write in turn and share no roster.

    A successor's records come after its predecessor's; where A's come after B's after
    A's, both live. If it is known who is connected, both must be.
    """
    if sample.answers.get(_roster_of(sample)) != 0:
        return None
    order = _writers(sample)
    returned = any(one in order[: at - 1] for at, one in enumerate(order) if at > 1)
    writers = set(order)
    if sample.connected is not None:
        writers = {one for one in writers if client_name(one) in sample.connected}
    elif not returned:
        return None
    if len(writers) < 2:  # noqa: PLR2004 - two
        return None
    return {"instances": show(", ".join(sorted(writers)))}


def _ask_roster(sample: Sample) -> list[Question]:
    return [_roster_of(sample)] if len(set(_writers(sample))) > 1 else []


def _writers(sample: Sample) -> list[str]:
    """Give the instances that wrote the newest records, each run of one once."""
    order = [""]
    for record in sample.objects[sample.oldest :]:
        name = "" if record is None else _writer_of(record)
        if name and name != order[-1]:
            order.append(name)
    return order[1:]


def _writer_of(record: JSONObject) -> str:
    """Give the instance of a record id, ``""`` for a record without one."""
    metadata: JSONValue = record.get("metadata")
    agent = metadata.get("agent") if isinstance(metadata, dict) else None
    if not isinstance(agent, str):
        return ""
    name, _, number = agent.rpartition("#")
    return name if number.isdecimal() else ""


def _rule(code: str, severity: Severity, check: Check) -> Rule:
    return Rule(code, ROW, severity, "002 §2.2", check)


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

RECORD_RULES: Final = (
    Rule("log-not-utf8", ROW, _E, "002 §4", bad_texts),
    _rule("log-not-json", _W, _no_objects),
    _rule("log-timestamp", _W, bad_objects(_lacks_time)),
    _rule("log-zone", _N, bad_objects(_lacks_zone)),
    _rule("log-ahead", _W, _is_ahead),
    _rule("log-level", _W, bad_objects(_has_other_level)),
    _rule("log-message", _W, bad_objects(_lacks_message)),
    _rule("log-metadata", _W, bad_objects(_has_odd_metadata)),
    Rule("log-too-long", ROW, _W, "002 §4", too_long),
    _rule("log-uncapped", _W, _is_uncapped),
    Rule("two-agents", ROW, _W, "002 §1", _two_agents, _ask_roster),
)
