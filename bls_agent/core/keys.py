"""Every key of the five protocols and of this package itself, one line for each key.

No other module builds the names of keys. In a template ``{name}`` is a field. A field
``{name!}`` holds no ``:``, so that a parser finds the next field. A field ``{name?}``
holds no ``:``, and may be left out together with the ``:`` after it. A field
``{name*}`` holds any bytes, or none.
"""

from __future__ import annotations

import operator
import re
import unicodedata
from binascii import crc_hqx
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, cast

from bls_agent.core.errors import (
    ConfigurationError,
    RedisUnavailableError,
    WrongTypeError,
)

_DAY: Final = 86_400
MAX_NAME_BYTES: Final = 512
SLOTS: Final = 16_384  # number of hash slots of a cluster


class RedisType(StrEnum):
    """A type of Redis keys, as the command TYPE returns it."""

    STRING = "string"
    LIST = "list"
    SET = "set"
    ZSET = "zset"
    HASH = "hash"
    STREAM = "stream"


class Contract(StrEnum):
    """The number of each protocol, and a value for the keys of this package itself."""

    ASSETS = "000"
    WORKERS = "001"
    CONSOLE = "002"
    RUNS = "003"
    CRAWL = "004"
    OWN = "bls_agent"


_FIELD: Final = re.compile(r"\{(\w+)([!?*]?)\}(:?)")


@dataclass(frozen=True)
class KeyTemplate:
    """One kind of key: its form, its Redis type, its TTL and its protocol."""

    template: str  # the form; the docstring of this module explains the fields
    type: RedisType | None  # ``None`` if the protocol does not define the type
    ttl: int | None  # seconds from a write to the expiry; ``None`` for no expiry
    contract: Contract
    ttl_from: str = ""  # the setting that sets the TTL, or "lease" for the lease's TTL
    ambiguous: bool = False  # whether a key may be split into fields in several ways
    taken: tuple[str, ...] = ()  # values of the first field that belong to other rows

    def build(self, **values: object) -> str:
        """Build a key that this package writes, from texts, integers or UUIDs.

        Raise ConfigurationError if a field is missing or unknown, or if a value breaks
        a rule for names.
        """
        for name, value in values.items():
            if name in self._free or (value is None and name in self.optional):
                continue
            checked = check_name(name, cast("str", name_of(value)))
            if name in self._closed and ":" in checked:
                raise ConfigurationError(
                    name, checked, "this part of a key holds no ':'", "Use '_' instead."
                )
            if name == self.fields[0] and checked in self.taken:
                rule = "keys of this form have a row of their own in the table of keys"
                raise ConfigurationError(name, checked, rule, "Use another word.")
        return self.locate(**values)

    def locate(self, **values: object) -> str:
        """Build a key that another program may have written.

        The rules for names are not checked, because that program has chosen the names.
        Raise ConfigurationError if a value cannot be a name.
        """
        unknown = values.keys() - set(self.fields)
        missing = set(self.fields) - values.keys() - self.optional
        if unknown or missing:
            raise self._wrong_fields(unknown or missing)
        texts = {name: name_of(value) for name, value in values.items()}
        for name, text in texts.items():
            is_absent = text is None and name in self.optional
            if not is_absent and not (isinstance(text, str) and is_encodable(text)):
                raise ConfigurationError(name, values[name], "a text in Unicode")
        return self._fill(cast("dict[str, str | None]", texts))

    def _wrong_fields(self, names: Iterable[str]) -> ConfigurationError:
        rule = f"its fields are {', '.join(self.fields) or 'none'}"
        return ConfigurationError(self.template, ", ".join(sorted(names)), rule)

    def parse(self, key: str | bytes) -> dict[str, str] | None:
        """Return the fields of a key; ``None`` for no or several ways to split it."""
        readings = self.readings(key)
        return readings[0] if len(readings) == 1 else None

    def readings(self, key: str | bytes) -> list[dict[str, str]]:
        """Return the fields for each way to split a key; ``[]`` if the form differs."""
        text = key if isinstance(key, str) else decode_key(key)
        if self.ambiguous:
            return list(self._all_readings(text))
        found = self._regex.fullmatch(text)
        if found is None:
            return []
        return [{n: v for n, v in found.groupdict().items() if v is not None}]

    def match(self, key: str | bytes) -> bool:
        return bool(self.readings(key))

    def pattern(self, **fixed: str | int) -> str:
        """Return a glob pattern with ``*`` for each field that has no fixed value.

        Fixed values are escaped. An optional field without a value has no ``*`` of its
        own, because the ``*`` before this field matches the field, too.
        """
        if unknown := fixed.keys() - set(self.fields):
            raise self._wrong_fields(unknown)
        values = {
            name: escape_glob(str(name_of(value))) for name, value in fixed.items()
        }
        shown = {
            name: values.get(name, None if name in self.optional else "*")
            for name in self.fields
        }
        return self._fill(shown)

    @cached_property
    def fields(self) -> tuple[str, ...]:
        return tuple(found[1] for found in _FIELD.finditer(self.template))

    @cached_property
    def optional(self) -> frozenset[str]:
        return self._marked("?")

    @cached_property
    def _closed(self) -> frozenset[str]:
        return self._marked("!?")

    @cached_property
    def _free(self) -> frozenset[str]:
        return self._marked("*")

    def _marked(self, marks: str) -> frozenset[str]:
        found = _FIELD.finditer(self.template)
        return frozenset(field[1] for field in found if field[2] and field[2] in marks)

    def _fill(self, values: Mapping[str, str | None]) -> str:
        def part(field: re.Match[str]) -> str:
            value = values.get(field[1])
            return "" if value is None else value + field[3]

        return _FIELD.sub(part, self.template)

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        parts: list[str] = []
        end = 0
        for field in _FIELD.finditer(self.template):
            parts.append(re.escape(self.template[end : field.start()]))
            if self.taken and field[1] == self.fields[0]:
                parts.append(f"(?!(?:{'|'.join(self.taken)}){field[3]})")
            inner = {"": ".+", "*": ".*"}.get(field[2], "[^:]+")
            part = f"(?P<{field[1]}>{inner}){field[3]}"
            parts.append(f"(?:{part})?" if "?" in field[2] else part)
            end = field.end()
        parts.append(re.escape(self.template[end:]))
        return re.compile("".join(parts), re.DOTALL)

    def _all_readings(self, text: str) -> Iterator[dict[str, str]]:
        """Split a key at each occurrence of the text between its two fields."""
        first, second = _FIELD.finditer(self.template)
        head = self.template[: first.start()]
        between = self.template[first.end() : second.start()]
        if not text.startswith(head):
            return
        rest = text[len(head) :]
        at = rest.find(between, 1)
        while at != -1:
            if rest[at + len(between) :]:
                yield {first[1]: rest[:at], second[1]: rest[at + len(between) :]}
            at = rest.find(between, at + 1)


_T: Final = RedisType
_C: Final = Contract

# fmt: off
# The console protocol (002)
PROJECT_STATUS: Final = KeyTemplate("{project}_项目状态", _T.STRING, 60, _C.CONSOLE, "status_ttl")
PROJECT_CONSOLE: Final = KeyTemplate("{project}_项目控制台", _T.LIST, None, _C.CONSOLE)
CONTROL: Final = KeyTemplate("{project}_控制", _T.LIST, None, _C.CONSOLE)
PROJECT_KEYS: Final = (PROJECT_STATUS, PROJECT_CONSOLE, CONTROL)

# Run events (003)
RUN_EVENTS: Final = KeyTemplate("run:{run_id}:events", _T.STREAM, _DAY, _C.RUNS)

# Keys of this package, each of which belongs to a key of a protocol. {place} is
# place_beside() of the protocol's key.
INFLIGHT: Final = KeyTemplate("bls_agent:{place}:inflight:{instance}", _T.LIST, None, _C.OWN)
INFLIGHT_LISTS: Final = KeyTemplate("bls_agent:{place}:inflight", _T.HASH, None, _C.OWN)
DELIVERIES: Final = KeyTemplate("bls_agent:{place}:deliveries", _T.HASH, 7 * _DAY, _C.OWN)
SEEN: Final = KeyTemplate("bls_agent:{place}:seen", _T.ZSET, 600, _C.OWN, "dedup_window")
DEAD_LETTERS: Final = KeyTemplate("bls_agent:{place}:dead", _T.LIST, None, _C.OWN)
BROADCAST: Final = KeyTemplate("bls_agent:{place}:broadcast:{instance}", _T.LIST, 300, _C.OWN)
INTAKE: Final = KeyTemplate("bls_agent:{place}:intake", _T.HASH, 30, _C.OWN)
INSTANCES: Final = KeyTemplate("bls_agent:{place}:instances", _T.HASH, 60, _C.OWN, "status_ttl")
OWNER: Final = KeyTemplate("bls_agent:{place}:owner", _T.STRING, None, _C.OWN, "lease")
RUN_BOOKS: Final = KeyTemplate("bls_agent:{place}:books", _T.HASH, _DAY, _C.OWN)
ASSET_REPORT: Final = KeyTemplate("bls_agent:{place}:report", _T.STRING, None, _C.OWN)
CRAWL_LEASES: Final = KeyTemplate("bls_agent:{place}:leases", _T.HASH, None, _C.OWN)
CRAWL_DELAYED: Final = KeyTemplate("bls_agent:{place}:delayed", _T.HASH, None, _C.OWN)
CRAWL_COUNTERS: Final = KeyTemplate("bls_agent:{place}:counters", _T.HASH, None, _C.OWN)
CRAWL_WAKE: Final = KeyTemplate("bls_agent:{place}:wake", _T.LIST, None, _C.OWN)
CRAWL_BLOOM: Final = KeyTemplate("bls_agent:{place}:bloom", None, None, _C.OWN)  # each kind of server returns another TYPE
CONSOLE_CHANGES: Final = KeyTemplate("bls_agent:console:changes", _T.STREAM, None, _C.OWN)
CRAWL_KEY_FAULT: Final = "Key不符合命名规范"  # error text that the protocol of crawl queues (004) requires

KEYS: Final[Mapping[str, KeyTemplate]] = {
    "project_status": PROJECT_STATUS,
    "project_console": PROJECT_CONSOLE,
    "control": CONTROL,
    # This package's own keys for the console protocol: reliable receiving, replicas,
    # leases
    "inflight": INFLIGHT,
    "inflight_lists": INFLIGHT_LISTS,
    "deliveries": DELIVERIES,
    "seen": SEEN,
    "dead_letters": DEAD_LETTERS,
    "broadcast": BROADCAST,
    "instances": INSTANCES,
    "intake": INTAKE,
    "owner": OWNER,
    # Run events (003), and this package's metadata of a run
    "run_events": RUN_EVENTS,
    "run_books": RUN_BOOKS,
    # Worker heartbeats (001): processes, tasks, caches
    "generic_heartbeat": KeyTemplate("heartbeat:{kind!}:{worker_id}", _T.STRING, 30, _C.WORKERS, taken=("data_worker", "node", "scheduler", "task_timer", "component")),
    "data_worker_heartbeat": KeyTemplate("heartbeat:data_worker:{node_id}", _T.STRING, 30, _C.WORKERS),
    "backtest_worker_heartbeat": KeyTemplate("backtest:worker:{worker_id}", _T.STRING, 30, _C.WORKERS),
    "execution_node_heartbeat": KeyTemplate("heartbeat:node:{node_id}", _T.STRING, 30, _C.WORKERS),
    "scheduler_heartbeat": KeyTemplate("heartbeat:scheduler:{node_id}", _T.STRING, 30, _C.WORKERS),
    "task_timer_heartbeat": KeyTemplate("heartbeat:task_timer:{node_id}", _T.STRING, 30, _C.WORKERS),
    "component_heartbeat": KeyTemplate("heartbeat:component:{component_type!}:{component_id}", _T.STRING, 30, _C.WORKERS),
    "process_heartbeat": KeyTemplate("ginkgo:heartbeat:{pid}", _T.STRING, 30, _C.WORKERS),
    "main_control": KeyTemplate("ginkgo:maincontrol", None, None, _C.WORKERS),
    "watchdog": KeyTemplate("ginkgo:watchdog", None, None, _C.WORKERS),
    "thread_pool": KeyTemplate("ginkgo:thread_pool", None, None, _C.WORKERS),
    "data_worker_pool": KeyTemplate("ginkgo:dataworker_pool", None, None, _C.WORKERS),
    "worker_status": KeyTemplate("ginkgo:worker_status:{pid}", None, None, _C.WORKERS),
    "task_status": KeyTemplate("ginkgo:task_status:{task_id}", _T.STRING, _DAY, _C.WORKERS),
    "backtest_task_progress": KeyTemplate("backtest:task:{task_id}:progress", _T.STRING, 7_200, _C.WORKERS),
    "sync_progress": KeyTemplate("{type}_update_{code}", _T.SET, 30 * _DAY, _C.WORKERS, ambiguous=True),
    "func_cache": KeyTemplate("ginkgo_func_cache_{func}_{key}", _T.STRING, 3_600, _C.WORKERS, ambiguous=True),
    # The asset library (000), whose section 6 reserves the last four keys
    "asset_metadata": KeyTemplate("asset:metadata:{id}", _T.HASH, None, _C.ASSETS),
    "asset_category": KeyTemplate("asset:category:{category}", _T.SET, None, _C.ASSETS),
    "asset_index": KeyTemplate("asset:index", _T.HASH, None, _C.ASSETS),
    "asset_sync_state": KeyTemplate("asset:sync:state", _T.HASH, None, _C.ASSETS),
    "asset_sync_changed": KeyTemplate("asset:sync:changed", _T.LIST, None, _C.ASSETS),
    "asset_report": ASSET_REPORT,
    "asset_search_index": KeyTemplate("asset:search:index", None, None, _C.ASSETS),
    "project_config": KeyTemplate("project:config:{project_id}", _T.HASH, None, _C.ASSETS),
    "pending_tasks": KeyTemplate("task:queue:pending", _T.LIST, None, _C.ASSETS),
    "queued_task_status": KeyTemplate("task:status:{task_id}", _T.HASH, None, _C.ASSETS),
    # Crawl queues (004); the last five keys are this package's own
    "crawl_requests": KeyTemplate("crawlo:{project!}:{spider?}:queue:requests", _T.ZSET, None, _C.CRAWL),
    "crawl_requests_data": KeyTemplate("crawlo:{project!}:{spider?}:queue:requests:data", _T.HASH, None, _C.CRAWL),
    "crawl_processing": KeyTemplate("crawlo:{project!}:{spider?}:queue:processing", _T.ZSET, None, _C.CRAWL),
    "crawl_processing_data": KeyTemplate("crawlo:{project!}:{spider?}:queue:processing:data", _T.HASH, None, _C.CRAWL),
    "crawl_failed": KeyTemplate("crawlo:{project!}:{spider?}:queue:failed", _T.LIST, None, _C.CRAWL),
    "crawl_failed_retries": KeyTemplate("crawlo:{project!}:{spider?}:queue:failed:retries:{key*}", _T.STRING, None, _C.CRAWL),
    "crawl_filter_fingerprint": KeyTemplate("crawlo:{project!}:{spider?}:filter:fingerprint", _T.SET, None, _C.CRAWL),
    "crawl_item_fingerprint": KeyTemplate("crawlo:{project!}:{spider?}:item:fingerprint", _T.SET, None, _C.CRAWL),
    "crawl_leases": CRAWL_LEASES,
    "crawl_delayed": CRAWL_DELAYED,
    "crawl_counters": CRAWL_COUNTERS,
    "crawl_wake": CRAWL_WAKE,
    "crawl_bloom": CRAWL_BLOOM,
    # Of the console in the browser, if it is started with --keep-changes
    "console_changes": CONSOLE_CHANGES,
}
# fmt: on


def find_templates(key: str | bytes) -> list[str]:
    """Return the names of the rows of KEYS that match a key, ambiguous rows last."""
    rows = [(row.ambiguous, name) for name, row in KEYS.items() if row.match(key)]
    return [name for _, name in sorted(rows, key=lambda found: found[0])]


def checked_reply(reply: Any, key: str) -> Any:
    """Return a reply; raise an error reply, and for a wrong type a WrongTypeError."""
    if isinstance(reply, RedisUnavailableError):
        if reply.kind == "wrong_type":
            expected = str(KEYS[find_templates(key)[0]].type)
            raise WrongTypeError(key, expected) from reply
        raise reply
    return reply


# --- names that may become part of a key


def name_of(value: object) -> object:
    """Return a text, an integer or a UUID as plain text; return other values unchanged.

    The name of a member of an ``Enum`` with texts or integers is the member's value.
    """
    if isinstance(value, str):
        return str.__str__(value)  # str() returns "Kind.A" for a member of an Enum
    if isinstance(value, bool):
        return value
    with suppress(TypeError):
        return str(operator.index(cast("Any", value)))
    from uuid import UUID  # noqa: PLC0415 - the import takes 1 ms and is rarely needed

    return str(value) if isinstance(value, UUID) else value


def encode_key(key: str) -> bytes:
    """Return the bytes of a key; surrogate escapes become bytes that are not UTF-8."""
    return key.encode("utf-8", "surrogateescape")


def decode_key(key: bytes) -> str:
    """Return a key as text, from which :func:`encode_key` makes the same bytes."""
    return key.decode("utf-8", "surrogateescape")


def is_encodable(name: str) -> bool:
    try:
        encode_key(name)
    except UnicodeEncodeError:
        return False
    else:
        return True


def show_name(name: str) -> str:
    r"""Return a name for JSON; bytes that are not UTF-8 become ``\xNN``."""
    return encode_key(name).decode("utf-8", "backslashreplace")


def check_name(field: str, value: str) -> str:
    """Return a name that may become part of a key, or raise ConfigurationError."""
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
        rule = f"a name is text, not {type(value).__name__}"  # type: ignore[unreachable]
        raise ConfigurationError(field, value, rule)
    for broken, rule, remedy in _NAME_RULES:
        if broken(value):
            raise ConfigurationError(field, value, rule, remedy)
    return value


def _has(category: str) -> Callable[[str], bool]:
    """Return a function that finds characters of a Unicode category in a name."""
    return lambda name: any(unicodedata.category(one) == category for one in name)


_NAME_RULES: Final[tuple[tuple[Callable[[str], bool], str, str], ...]] = (
    (lambda name: not name, "a name must not be empty", ""),
    (_has("Cs"), "a name must be valid Unicode", "Remove lone surrogates."),
    (
        lambda name: len(name.encode()) > MAX_NAME_BYTES,
        f"a name has at most {MAX_NAME_BYTES} bytes of UTF-8",
        "Shorten it.",
    ),
    (
        lambda name: name != name.strip(),
        "a name neither begins nor ends with a blank",
        "Strip it.",
    ),
    (
        _has("Cc"),
        "a name holds no control characters",
        "Remove newlines, tabs and NULs.",
    ),
    (
        lambda name: not unicodedata.is_normalized("NFC", name),
        "a name is in Unicode form NFC, or peers would use another key",
        "Pass unicodedata.normalize('NFC', name).",
    ),
)


def escape_glob(text: str) -> str:
    """Escape the characters that SCAN, KEYS and ACL patterns read as wildcards."""
    return re.sub(r"([*?\[\]\\^])", r"\\\1", text)


def quote_word(word: str) -> str:
    """Quote a word of an ACL selector if needed, because Redis reads quotes there."""
    if "'" not in word and '"' not in word:
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def hash_tag(key: str) -> str:
    """Return the part of a key that selects its slot: in ``{…}``, or the whole key."""
    start = key.find("{")
    end = key.find("}", start + 1) if start != -1 else -1
    return key[start + 1 : end] if end > start + 1 else key


def place_beside(key: str) -> str:
    """Return a key in ``{…}``, as value of the field ``place`` of this package's keys.

    A key that contains this text has the same slot as ``key``. If ``key`` has a hash
    tag, ``key`` is returned unchanged.
    """
    return key if hash_tag(key) != key else f"{{{key}}}"


def key_beside(place: str) -> str:
    """Return the key whose :func:`place_beside` is this text."""
    inner = place.removeprefix("{").removesuffix("}")
    return inner if place_beside(inner) == place else place


def shares_slot(key: str) -> bool:
    """Return whether keys with ``place_beside(key)`` have the slot of ``key``.

    If the key holds an unpaired ``}``, they may have another slot.
    """
    return hash_tag(place_beside(key)) == hash_tag(key)


def slot_of(key: str) -> int:
    """Return a key's slot on a cluster: CRC16 (XMODEM) of its hash tag."""
    return crc_hqx(encode_key(hash_tag(key)), 0) % SLOTS
