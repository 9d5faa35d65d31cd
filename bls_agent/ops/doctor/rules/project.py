"""The rules about a project's keys in the console protocol, and about our own keys."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from itertools import groupby
from typing import Final

from bls_agent.connection.connection import client_name
from bls_agent.core.codec import JSONValue, parse_timestamp
from bls_agent.core.errors import ConfigurationError
from bls_agent.core.keys import (
    INFLIGHT_LISTS,
    INSTANCES,
    KEYS,
    OWNER,
    PROJECT_CONSOLE,
    PROJECT_STATUS,
    check_name,
    place_beside,
)
from bls_agent.ops.doctor.rule import (
    Check,
    Rule,
    Sample,
    Severity,
    Source,
    Values,
    bad_field,
    bad_items,
    bad_objects,
    count_bad,
    is_no_text,
    is_no_time,
    lacks_zone,
    longer_than,
    seconds_ahead,
    show,
    shown_if,
)
from bls_agent.project.log.record import RECORD_LIMIT
from bls_agent.project.messages import Level, LogEntry, Status
from bls_agent.project.status.intake import intake_key, read_reports

LAPSING: Final = 2.0  # seconds; a status with a shorter remaining TTL is a finding
CAP: Final = 50_000  # most records of a log; agents of this package keep 10,000
AHEAD: Final = 120.0  # most seconds that a clock may be ahead of the server's
OLD: Final = 60.0  # seconds after which a command should have been taken
BACKLOG: Final = 1_000  # most commands that may wait
LOG: Final = "project_console"
CONTROL_LIST: Final = "control"
LEVELS: Final = tuple(Level)

_INVISIBLE: Final = frozenset({"Cc", "Cf"})
_PROJECT_ROWS: Final = ("project_status", "project_console", "control")
_STATES: Final = frozenset(status.value.encode() for status in Status)
_ENDED: Final = (None, Status.OFFLINE.value.encode())  # no status, or a normal end


def find_meant(key: str) -> str | None:
    """Return the project key that a program probably meant by a wrong key, or ``None``.

    The wrong key may be written in GBK, or have full-width letters, or end in a newline.
    """
    if key.isascii():
        return None
    for meant in (key, _in_gbk(key)):
        tidied = tidy_name(meant)
        if tidied != key and any(KEYS[row].match(tidied) for row in _PROJECT_ROWS):
            return tidied
    return None


def _in_gbk(text: str) -> str:
    """Decode the bytes of a text as GBK; return ``""`` if they are not GBK."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("gb18030")
    except UnicodeDecodeError:
        return ""


def tidy_name(text: str) -> str:
    """Return a name in NFKC, without invisible characters and blanks at its ends."""
    if text.isprintable() and unicodedata.is_normalized("NFKC", text):
        return text.strip()
    plain = unicodedata.normalize("NFKC", text)
    kept = (
        letter for letter in plain if unicodedata.category(letter) not in _INVISIBLE
    )
    return "".join(kept).strip()


def name_fault(project: str) -> str:
    """Return why agents refuse a project's name, or ``""`` if the name is valid."""
    try:
        check_name("project", project)
    except ConfigurationError as error:
        return error.rule
    return ""


def quote_name(project: str) -> str:
    """Quote a project's name; if its bytes are not UTF-8, also decode them as GBK."""
    raw = project.encode("utf-8", "surrogateescape")
    if not is_no_text(raw):
        return show(repr(project))
    read = _in_gbk(project)
    return f"{show(raw)} (GBK: {show(read)})" if read else show(raw)


def _unknown_status(sample: Sample) -> Values | None:
    return shown_if(sample.value.strip() not in _STATES, sample.value)


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


def _other_bytes(sample: Sample) -> Values | None:
    meant = find_meant(sample.key)
    return {"meant": show(meant)} if meant else None


def _broken_name(sample: Sample) -> Values | None:
    name = sample.fields["project"]
    return {"name": quote_name(name)} if name_fault(name) else None


def _untidy_name(sample: Sample) -> Values | None:
    """Find a valid name that looks like the name of another project that exists."""
    name = sample.fields["project"]
    tidy = name if name.isascii() else tidy_name(name)
    if tidy in ("", name) or name_fault(name):
        return None
    key = KEYS[sample.row].locate(project=tidy)
    return {"meant": show(key)} if sample.ask("EXISTS", key) == 1 else None


def _orphan(sample: Sample) -> Values | None:
    owner = OWNER.locate(place=place_beside(sample.key))
    if sample.ask("EXISTS", owner) != 0:
        return None
    return {"count": f"{sample.size:,}", "instance": show(sample.fields["instance"])}


def _unlisted(sample: Sample) -> Values | None:
    lists = INFLIGHT_LISTS.locate(place=sample.fields["place"])
    if sample.ask("HEXISTS", lists, sample.key) != 0:
        return None
    return {"count": f"{sample.size:,}", "lists": show(lists)}


def _no_objects(sample: Sample) -> Values | None:
    """Find texts that are no JSON objects; texts above the limit are not checked."""
    pairs = zip(sample.items, sample.objects, strict=True)
    short = [one for one, read in pairs if read is None and len(one) <= RECORD_LIMIT]
    return count_bad([one for one in short if not is_no_text(one)], sample)


def _too_long(sample: Sample) -> Values | None:
    """Find messages that are not shorter than 64 KiB, which the protocol asks for.

    If no message was read, the rule checks the average size of the messages.
    """
    longest = max(map(len, sample.items), default=int(sample.mean_bytes))
    return {"bytes": f"{longest:,}"} if longest > RECORD_LIMIT else None


def _is_ahead(sample: Sample) -> Values | None:
    newest = sample.records[-1].get("timestamp") if sample.records else None
    ahead = seconds_ahead(newest, sample)
    return (
        {"seconds": f"{ahead:,.0f}", "shown": show(newest)} if ahead > AHEAD else None
    )


def _is_blank(value: JSONValue) -> bool:
    return not isinstance(value, str) or not value.strip()


def _endless(sample: Sample) -> Values | None:
    return {} if sample.ttl is None else None


def _status_key(sample: Sample) -> str:
    return PROJECT_STATUS.locate(project=sample.fields["project"])


def _two_agents(sample: Sample) -> Values | None:
    """Find two processes that write to one log although they are no replicas.

    After a restart, all records of the new process follow those of the old process. If
    records of A, then of B, then of A again are in the log, both processes are alive. If
    Redis allows CLIENT LIST, the rule checks instead whether both are connected.
    """
    writing = [LogEntry.decode(item).instance for item in sample.items[sample.oldest :]]
    order = [name for name, _ in groupby(filter(None, writing))]
    writers = set(order)
    if sample.connected is not None:
        writers = {one for one in writers if client_name(one) in sample.connected}
    elif len(order) == len(writers):
        return None
    if len(writers) < 2:  # noqa: PLR2004 - two
        return None
    roster = INSTANCES.locate(place=place_beside(_status_key(sample)))
    if sample.ask("EXISTS", roster) != 0:
        return None
    return {"instances": show(", ".join(sorted(writers)))}


def _repeated(sample: Sample) -> Values | None:
    """Find ids that occur twice in the commands that were read."""
    ids = [one.get("id") for one in sample.records]
    numbers = Counter(str(one) for one in ids if one and isinstance(one, str | int))
    twice = [number for number, count in numbers.items() if count > 1]
    return {"count": str(len(twice)), "shown": show(twice[0])} if twice else None


def _waiting(code: str) -> Check:
    """Make a check that returns a finding if waiting commands are a case of ``code``.

    The commands wait too long, or have no timestamp. The project's status and log decide
    which code is right, so at most one of the three checks returns a finding.
    """

    def check(sample: Sample) -> Values | None:
        first = sample.objects[0] if sample.objects else None
        sent = parse_timestamp((first or {}).get("timestamp"))
        age = math.inf if sent is None else sample.now - sent.timestamp()
        if age <= OLD:
            return None
        project = sample.fields["project"]
        key, log = _status_key(sample), PROJECT_CONSOLE.locate(project=project)
        reports = ("HGETALL", intake_key(project))
        questions = [("GET", key), reports, ("EXISTS", key), ("EXISTS", log)]
        status, intakes, *there = sample.ask_all(questions)
        if there == [0, 0]:
            found = "commands-to-nobody"
        elif sent is None:
            found = ""
        else:
            found = "commands-unclaimed" if status in _ENDED else "commands-untaken"
        if found != code:
            return None
        return {
            "count": f"{sample.size:,}",
            "age": show(sent and _duration(age)),
            "status": _describe_status(status, intakes, sample.now),
            "name": show(project),
        }

    return check


def _describe_status(
    status: bytes | None, intakes: list[bytes] | None, now: float
) -> str:
    """Return a status, and the processes that take no commands, such as paused ones."""
    reports = read_reports(intakes or [], now).items()
    states = [f"{show(name)} {report.state}" for name, report in reports]
    return show(status) + (f" ({show(', '.join(states))})" if states else "")


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s"


def _record_rule(code: str, severity: Severity, check: Check) -> Rule:
    return Rule(code, LOG, severity, Source.LOG, check)


def _command_rule(code: str, severity: Severity, check: Check) -> Rule:
    return Rule(code, CONTROL_LIST, severity, Source.COMMANDS, check)


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

_RECORD_RULES: Final = (
    Rule("log-not-utf8", LOG, _E, Source.PROJECT, bad_items(is_no_text)),
    _record_rule("log-not-json", _W, _no_objects),
    _record_rule("log-timestamp", _W, bad_field("timestamp", is_no_time)),
    _record_rule("log-zone", _N, bad_field("timestamp", lacks_zone)),
    _record_rule("log-ahead", _W, _is_ahead),
    _record_rule(
        "log-level", _W, bad_field("level", lambda level: level not in LEVELS)
    ),
    _record_rule(
        "log-message", _W, bad_field("message", lambda text: not isinstance(text, str))
    ),
    _record_rule(
        "log-metadata",
        _W,
        bad_objects(lambda record: not isinstance(record.get("metadata", {}), dict)),
    ),
    Rule("log-too-long", LOG, _W, Source.PROJECT, _too_long),
    _record_rule("log-uncapped", _W, longer_than(CAP)),
    Rule("two-agents", LOG, _W, Source.PROJECT, _two_agents),
)

_COMMAND_RULES: Final = (
    Rule("command-not-utf8", CONTROL_LIST, _E, Source.PROJECT, bad_items(is_no_text)),
    _command_rule("command-not-json", _E, _no_objects),
    _command_rule("command-without-name", _E, bad_field("command", _is_blank)),
    _command_rule(
        "command-args",
        _E,
        bad_field("args", lambda args: not isinstance(args, dict | None)),
    ),
    _command_rule("command-id", _W, bad_field("id", _is_blank)),
    _command_rule("command-timestamp", _W, bad_field("timestamp", is_no_time)),
    _command_rule("command-source", _N, bad_field("source", _is_blank)),
    _command_rule("command-repeated", _W, _repeated),
    Rule("command-too-long", CONTROL_LIST, _W, Source.PROJECT, _too_long),
    _command_rule("command-backlog", _W, longer_than(BACKLOG, "count")),
    _command_rule("commands-untaken", _W, _waiting("commands-untaken")),
    _command_rule("commands-unclaimed", _W, _waiting("commands-unclaimed")),
    _command_rule("commands-to-nobody", _W, _waiting("commands-to-nobody")),
)

RULES: Final = (
    Rule("status-unknown", "project_status", _E, Source.STATUS, _unknown_status),
    Rule("status-blanks", "project_status", _W, Source.STATUS, _status_in_blanks),
    Rule("status-untimed", "project_status", _N, Source.STATUS, _untimed_status),
    Rule("status-lapsing", "project_status", _N, Source.STATUS, _lapsing_status),
    *_RECORD_RULES,
    *_COMMAND_RULES,
    Rule("twin-key", "", _E, Source.PROJECT, _other_bytes),
    *(
        Rule("name-broken", row, _W, Source.PROJECT, _broken_name)
        for row in _PROJECT_ROWS
    ),
    *(
        Rule("twin-name", row, _W, Source.PROJECT, _untidy_name)
        for row in _PROJECT_ROWS
    ),
    Rule("inflight-orphan", "inflight", _W, Source.OWN, _orphan),
    Rule("inflight-unlisted", "inflight", _W, Source.OWN, _unlisted),
    Rule("dead-letters", "dead_letters", _W, Source.OWN, longer_than(0, "count")),
    Rule("lease-endless", "owner", _E, Source.OWN, _endless),
    Rule("roster-endless", "instances", _W, Source.OWN, _endless),
)
