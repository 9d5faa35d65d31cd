"""What a doctor holds against control lists (contract 002, section 3.1)."""

from __future__ import annotations

from collections import Counter
from typing import Final

from bls_agent.core.codec import JSONObject, parse_timestamp
from bls_agent.core.keys import PROJECT_CONSOLE, PROJECT_STATUS
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
    show,
)
from bls_agent.ops.doctor.rules.project_records import is_no_object, too_long
from bls_agent.project.messages import Status

__all__ = ["COMMAND_RULES"]

OLD: Final = 60.0  # seconds after which a command should have been taken
BACKLOG: Final = 1_000  # commands
ROW: Final = "control"


def _lacks_name(command: JSONObject) -> bool:
    name = command.get("command")
    return not isinstance(name, str) or not name.strip()


def _has_odd_args(command: JSONObject) -> bool:
    return not isinstance(command.get("args"), dict | None)


def _lacks_id(command: JSONObject) -> bool:
    number = command.get("id")
    return not isinstance(number, str) or not number


def _lacks_time(command: JSONObject) -> bool:
    return parse_timestamp(command.get("timestamp")) is None


def _lacks_source(command: JSONObject) -> bool:
    source = command.get("source")
    return not isinstance(source, str) or not source


def _repeated(sample: Sample) -> Values | None:
    """Find ids that stand twice among those that were read."""
    numbers = Counter(str(one["id"]) for one in sample.records if one.get("id"))
    twice = [number for number, count in numbers.items() if count > 1]
    return {"count": str(len(twice)), "shown": show(twice[0])} if twice else None


def _status_of(sample: Sample) -> Question:
    return ("GET", PROJECT_STATUS.locate(project=sample.fields["project"]))


def _ask_status(sample: Sample) -> list[Question]:
    return [_status_of(sample)] if _age(sample) > OLD else []


def _log_of(sample: Sample) -> Question:
    return ("EXISTS", PROJECT_CONSOLE.locate(project=sample.fields["project"]))


def _ask_for_life(sample: Sample) -> list[Question]:
    """Ask of a list whose oldest command is old, or does not say how old it is."""
    first = sample.objects[0] if sample.objects else None
    if _age(sample) > OLD or _lacks_time(first or {}):
        return [_status_of(sample), _log_of(sample)]
    return []


def _age(sample: Sample) -> float:
    """Give the seconds for which the oldest command has waited; 0 if it does not say."""
    oldest = sample.objects[0] if sample.objects else None
    moment = parse_timestamp((oldest or {}).get("timestamp"))
    return 0.0 if moment is None else sample.now - moment.timestamp()


def _is_alive(sample: Sample) -> bool:
    """Tell whether the project has a status, and not the one of a normal end."""
    told = sample.answers.get(_status_of(sample))
    return told is not None and told != Status.OFFLINE.value.encode()


def _waiting(sample: Sample) -> Values:
    return {"count": f"{sample.size:,}", "age": _duration(_age(sample))}


def _untaken(sample: Sample) -> Values | None:
    if _age(sample) <= OLD or not _is_alive(sample):
        return None
    told = sample.answers[_status_of(sample)]
    return _waiting(sample) | {"status": show(told)}


def _unclaimed(sample: Sample) -> Values | None:
    if _age(sample) <= OLD or _is_alive(sample) or _to_nobody(sample):
        return None
    return _waiting(sample)


def _to_nobody(sample: Sample) -> Values | None:
    """Find commands for a project that has neither a status nor a log."""
    status, log = _status_of(sample), _log_of(sample)
    if not {status, log} <= sample.answers.keys():
        return None
    if sample.answers[status] is not None or sample.answers[log]:
        return None
    return {"count": f"{sample.size:,}", "name": show(sample.fields["project"])}


def _backlog(sample: Sample) -> Values | None:
    return {"count": f"{sample.size:,}"} if sample.size > BACKLOG else None


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s"


def _rule(code: str, severity: Severity, check: Check) -> Rule:
    return Rule(code, ROW, severity, "002 §3.1", check)


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

COMMAND_RULES: Final = (
    Rule("command-not-utf8", ROW, _E, "002 §4", bad_texts),
    _rule("command-not-json", _E, bad_items(is_no_object)),
    _rule("command-without-name", _E, bad_objects(_lacks_name)),
    _rule("command-args", _E, bad_objects(_has_odd_args)),
    _rule("command-id", _W, bad_objects(_lacks_id)),
    _rule("command-timestamp", _W, bad_objects(_lacks_time)),
    _rule("command-source", _N, bad_objects(_lacks_source)),
    _rule("command-repeated", _W, _repeated),
    Rule("command-too-long", ROW, _W, "002 §4", too_long),
    _rule("command-backlog", _W, _backlog),
    Rule("commands-untaken", ROW, _W, "002 §3.1", _untaken, _ask_status),
    Rule("commands-unclaimed", ROW, _W, "002 §3.1", _unclaimed, _ask_status),
    Rule("commands-to-nobody", ROW, _W, "002 §3.1", _to_nobody, _ask_for_life),
)
