"""The kinds of worker heartbeats, as dataclasses.

A heartbeat is written with the fields of the protocol, in the order of the protocol. A
reader ignores unknown fields, uses the default of an absent field (only the status has
no default), and accepts a number that is written as text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Final, Self, cast

from bls_agent.core.checks import check_count
from bls_agent.core.codec import (
    JSONObject,
    decode_object,
    encode,
    encode_strictly,
    format_timestamp,
    parse_timestamp,
)
from bls_agent.core.errors import ConfigurationError, DecodeError
from bls_agent.core.keys import KEYS, KeyTemplate, name_of

DIGITS: Final = (
    20  # largest length of a number in a text; int() raises for a very long one
)
LARGEST: Final = 10**DIGITS - 1  # largest count


class WorkerStatus(StrEnum):
    """The state that a worker reports of itself."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ERROR = "error"


def _check_status(name: str, value: object) -> WorkerStatus:
    known = ", ".join(WorkerStatus)
    try:
        return WorkerStatus(str(name_of(value)).lower())
    except ValueError:
        raise ConfigurationError(name, value, f"one of {known}") from None


def _check_text(name: str, value: object) -> str:
    text = name_of(value)  # some callers pass numbers or UUIDs
    if isinstance(text, str):
        return text
    raise ConfigurationError(name, value, "text")


def _check_count(name: str, value: object) -> int:
    text = str(value).removesuffix(".0") if isinstance(value, str | float) else ""
    short = len(text) <= DIGITS and text.isascii() and text.isdecimal()
    number = int(text) if short else value
    return check_count(name, number, least=0, most=LARGEST)


def _check_object(name: str, value: object) -> JSONObject:
    if not isinstance(value, Mapping):
        raise ConfigurationError(name, value, "a dict with text as keys")
    plain = dict(cast("Mapping[str, Any]", value))
    encode_strictly(name, plain)
    return plain


def _check_texts(name: str, value: object) -> list[str]:
    if not isinstance(value, list | tuple):
        raise ConfigurationError(name, value, "a list of texts")
    return [_check_text(name, item) for item in cast("list[object]", value)]


def _check_moment(name: str, value: object) -> str:
    """Return a datetime as ISO-8601 text. Return ISO-8601 text unchanged."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return format_timestamp(aware.timestamp())
    if isinstance(value, str) and parse_timestamp(value) is not None:
        return value
    raise ConfigurationError(name, value, "ISO-8601 or a datetime")


# Annotation of a field → the function that checks and converts the field's value.
_CHECKS: Final[Mapping[str, Callable[[str, object], object]]] = MappingProxyType(
    {
        "WorkerStatus": _check_status,
        "str": _check_text,
        "int": _check_count,
        "JSONObject": _check_object,
        "list[str]": _check_texts,
    }
)


def _now() -> str:
    return format_timestamp(time.time())  # noqa: TID251 - create() has no parameter for the time


@dataclass(kw_only=True)
class WorkerHeartbeat:
    """The fields of every kind of heartbeat.

    Attributes:
        kind: The name of a row in ``core/keys.py``, which defines the form of the key
            and its TTL.
        id_field: The name of the field whose value is the id in the key.
        status: The state of the worker.
        timestamp: When the heartbeat was made, as ISO-8601 text with a time zone.
    """

    kind: ClassVar[str] = ""
    id_field: ClassVar[str] = "node_id"

    status: WorkerStatus = WorkerStatus.RUNNING
    timestamp: str = field(default_factory=_now)

    def __post_init__(self) -> None:
        for one in fields(self):
            check = _CHECKS[str(one.type)]
            setattr(self, one.name, check(one.name, getattr(self, one.name)))

    @classmethod
    def template(cls) -> KeyTemplate:
        """Return the form of the heartbeat's key, with its TTL."""
        return KEYS[cls.kind]

    @property
    def id(self) -> str:
        """The worker's id, as in the key."""
        return cast("str", getattr(self, self.id_field))

    @property
    def key(self) -> str:
        """The heartbeat's key. Raise ConfigurationError if a key cannot hold the id."""
        return self.template().build(**{self.template().fields[0]: self.id})

    def to_dict(self) -> JSONObject:
        """Return the fields in the order of the protocol."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def to_json(self) -> str:
        """Return the heartbeat as JSON. Non-ASCII text is not escaped."""
        fields = self.to_dict()
        try:
            return encode_strictly(type(self).__name__, fields).decode()
        except ConfigurationError:  # a field was set to what JSON cannot hold
            return encode(fields).decode()

    @classmethod
    def from_json(cls, data: str | bytes | Mapping[str, Any]) -> Self:
        """Decode a heartbeat from a worker in any programming language.

        Raises:
            DecodeError: The data is not a JSON object, or a field is wrong
                (``bad_field``).
        """
        given, payload = _object_of(data)
        names = [one.name for one in fields(cls)]
        known = {name: given[name] for name in names if given.get(name) is not None}
        if "status" not in known:  # only this field has no default
            raise DecodeError("bad_field", payload, "status: absent")
        try:
            known.setdefault("timestamp", "")  # the default is the current time
            return cls(**known)
        except ConfigurationError as error:
            detail = f"{error.name}: {error.rule}"
            raise DecodeError("bad_field", payload, detail) from None

    def changed(self, **changes: Any) -> Self:
        """Return a copy with the changes and the current time as timestamp.

        Raise ConfigurationError for an unknown field or a wrong value.
        """
        names = [one.name for one in fields(self)]
        if unknown := changes.keys() - set(names):
            rule = f"its fields are {', '.join(names)}"
            raise ConfigurationError(
                type(self).__name__, ", ".join(sorted(unknown)), rule
            )
        if self.id_field in changes and changes[self.id_field] != self.id:
            rule = "a heartbeat keeps its id: it is the name of its key"
            raise ConfigurationError(self.id_field, changes[self.id_field], rule)
        return replace(self, **{"timestamp": _now(), **changes})


@dataclass(kw_only=True)
class GenericHeartbeat(WorkerHeartbeat):
    """A worker of any kind: ``heartbeat:{kind}:{worker_id}``.

    The value is a JSON object: ``status``, ``timestamp``, then the worker's own fields
    in the worker's order.

    Attributes:
        kind_name: The worker's kind, as in the key.
        worker_id: The worker's id, as in the key.
        own: The worker's own fields, with any values that JSON can hold. A ``status``
            or ``timestamp`` in this dict is ignored.
    """

    kind: ClassVar[str] = "generic_heartbeat"
    id_field: ClassVar[str] = "worker_id"

    kind_name: str = ""
    worker_id: str = ""
    own: JSONObject = field(default_factory=dict[str, Any])

    @property
    def key(self) -> str:
        """The heartbeat's key. Raise ConfigurationError for a wrong kind or id."""
        if f"{self.kind_name.removesuffix('_heartbeat')}_heartbeat" in KEYS:
            rule = "not a name in the table of keys, by which readers find other keys"
            raise ConfigurationError("kind", self.kind_name, rule, "Use another word.")
        return self.template().build(kind=self.kind_name, worker_id=self.worker_id)

    def to_dict(self) -> JSONObject:
        """Return the fields in the order of the value."""
        shared = {"status": self.status, "timestamp": self.timestamp}
        return {**shared, **self.own, **shared}

    @classmethod
    def from_json(cls, data: str | bytes | Mapping[str, Any]) -> Self:
        """Decode a value. Kind and id are ``""``, because only the key contains them.

        Raises:
            DecodeError: The data is not a JSON object, or the status is not one of
                :class:`WorkerStatus` (``bad_field``).
        """
        shared = WorkerHeartbeat.from_json(data).to_dict()
        given, payload = _object_of(data)
        own = {name: value for name, value in given.items() if name not in shared}
        try:
            return cls(**shared, own=own)
        except ConfigurationError as error:
            raise DecodeError("bad_field", payload, error.rule) from None

    def changed(self, **changes: Any) -> Self:
        """Return a copy with the changes and the current time as timestamp.

        Names other than ``status`` and ``timestamp`` are the worker's own fields.
        """
        shared: dict[str, Any] = {"timestamp": _now()}
        for name in ("status", "timestamp"):
            if name in changes:
                shared[name] = changes.pop(name)
        return replace(self, **shared, own={**self.own, **changes})


def heartbeat_of(kind: str, worker_id: str) -> WorkerHeartbeat:
    """Make the heartbeat with the key ``heartbeat:{kind}:{worker_id}``.

    If the protocol defines the kind, such as ``scheduler``, the heartbeat has the class
    and the fields of this kind.
    """
    head = GenericHeartbeat.template().locate(kind=kind, worker_id="")
    for cls in KINDS.values():
        if cls.template().template.startswith(head):
            named: dict[str, Any] = {cls.id_field: worker_id}
            return cls(**named)
    return GenericHeartbeat(kind_name=kind, worker_id=worker_id)


@dataclass
class DataWorkerHeartbeat(WorkerHeartbeat):
    """A data worker: ``heartbeat:data_worker:{node_id}``.

    Attributes:
        stats: The worker's own counters, with any values that JSON can hold.
    """

    kind: ClassVar[str] = "data_worker_heartbeat"

    node_id: str = ""
    stats: JSONObject = field(default_factory=dict[str, Any])

    @classmethod
    def create(
        cls,
        node_id: str,
        status: WorkerStatus = WorkerStatus.RUNNING,
        stats: Mapping[str, Any] | None = None,
    ) -> Self:
        """Make a heartbeat with the current time as timestamp.

        Raise ConfigurationError for a wrong value.
        """
        given: Any = {} if stats is None else stats
        return cls(node_id=node_id, status=status, stats=given)


@dataclass
class BacktestWorkerHeartbeat(WorkerHeartbeat):
    """A backtest worker: ``backtest:worker:{worker_id}``.

    Attributes:
        running_tasks: Number of running tasks.
        max_tasks: Number of tasks that the worker can run at a time.
        started_at: Start of the worker, as ISO-8601 text with a time zone.
        last_heartbeat: The same as ``timestamp``, for readers that use this name.
        task_uuids: Ids of the running tasks.
    """

    kind: ClassVar[str] = "backtest_worker_heartbeat"
    id_field: ClassVar[str] = "worker_id"

    worker_id: str = ""
    running_tasks: int = 0
    max_tasks: int = 5
    started_at: str = ""
    last_heartbeat: str = ""
    task_uuids: list[str] = field(default_factory=list[str])

    @classmethod
    def create(  # noqa: PLR0917 - existing callers pass them by position
        cls,
        worker_id: str,
        status: WorkerStatus = WorkerStatus.RUNNING,
        running_tasks: int = 0,
        max_tasks: int = 5,
        started_at: str | datetime | None = None,
        task_uuids: Iterable[str] = (),
    ) -> Self:
        """Make a heartbeat with the current time as timestamp.

        ``worker_id`` is text, an integer or a UUID. ``started_at`` is ISO-8601 text or a
        datetime (UTC if it has no zone); the default is the current time. Raise
        ConfigurationError if a field cannot hold its value.
        """
        given = cast("object", task_uuids)  # callers may pass anything
        if isinstance(given, Iterable) and not isinstance(given, str | bytes):
            given = list(cast("Iterable[object]", given))
        now = _now()
        started = _check_moment("started_at", now if started_at is None else started_at)
        return cls(
            status=status,
            timestamp=now,
            worker_id=worker_id,
            running_tasks=running_tasks,
            max_tasks=max_tasks,
            started_at=started,
            last_heartbeat=now,
            task_uuids=cast("list[str]", given),
        )

    def changed(self, **changes: Any) -> Self:
        """Return a copy with changed fields; both time fields are the current time."""
        other = super().changed(**changes)
        return replace(other, last_heartbeat=other.timestamp)

    def update_heartbeat(self, running_tasks: int | None = None) -> None:
        """Set both time fields of this object to the current time."""
        count = self.running_tasks if running_tasks is None else running_tasks
        self.running_tasks = _check_count("running_tasks", count)
        self.timestamp: str = _now()
        self.last_heartbeat = self.timestamp


@dataclass
class ExecutionNodeHeartbeat(WorkerHeartbeat):
    """An execution node: ``heartbeat:node:{node_id}``.

    Attributes:
        host: The machine on which the node runs.
        port: The port on which the node listens; 0 if it does not listen.
        active_strategies: Number of strategies that the node executes.
    """

    kind: ClassVar[str] = "execution_node_heartbeat"

    node_id: str = ""
    host: str = ""
    port: int = 0
    active_strategies: int = 0

    @classmethod
    def create(
        cls,
        node_id: str,
        host: str = "",
        port: int = 0,
        status: WorkerStatus = WorkerStatus.RUNNING,
        active_strategies: int = 0,
    ) -> Self:
        """Make a heartbeat with the current time as timestamp.

        Raise ConfigurationError for a wrong value.
        """
        if isinstance(host, WorkerStatus):
            rule = "a host's name: the order is node_id, host, port, status"
            raise ConfigurationError("host", host, rule, "Pass status=… by name.")
        return cls(
            node_id=node_id,
            status=status,
            host=host,
            port=port,
            active_strategies=active_strategies,
        )


@dataclass
class SchedulerHeartbeat(WorkerHeartbeat):
    """A scheduler: ``heartbeat:scheduler:{node_id}``.

    Attributes:
        running_tasks: Number of running tasks.
        pending_tasks: Number of waiting tasks.
    """

    kind: ClassVar[str] = "scheduler_heartbeat"

    node_id: str = ""
    running_tasks: int = 0
    pending_tasks: int = 0

    @classmethod
    def create(
        cls,
        node_id: str,
        status: WorkerStatus = WorkerStatus.RUNNING,
        running_tasks: int = 0,
        pending_tasks: int = 0,
    ) -> Self:
        """Make a heartbeat with the current time as timestamp."""
        return cls(
            node_id=node_id,
            status=status,
            running_tasks=running_tasks,
            pending_tasks=pending_tasks,
        )


@dataclass
class TaskTimerHeartbeat(WorkerHeartbeat):
    """A task timer: ``heartbeat:task_timer:{node_id}``.

    Attributes:
        jobs_count: Number of jobs on the timer's schedule.
    """

    kind: ClassVar[str] = "task_timer_heartbeat"

    node_id: str = ""
    jobs_count: int = 0

    @classmethod
    def create(
        cls,
        node_id: str,
        status: WorkerStatus = WorkerStatus.RUNNING,
        jobs_count: int = 0,
    ) -> Self:
        """Make a heartbeat with the current time as timestamp."""
        return cls(node_id=node_id, status=status, jobs_count=jobs_count)


KINDS: Final[Mapping[str, type[WorkerHeartbeat]]] = MappingProxyType(
    {
        kind.kind: kind
        for kind in (
            DataWorkerHeartbeat,
            BacktestWorkerHeartbeat,
            ExecutionNodeHeartbeat,
            SchedulerHeartbeat,
            TaskTimerHeartbeat,
        )
    }
)


def parse_heartbeat_data(
    data: str | bytes | Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Read a heartbeat of any kind into a dict.

    Args:
        data: The reply to GET, or a dict.

    Returns:
        The heartbeat's JSON object; ``{}`` if ``data`` is ``None``; ``{"raw": text}``
        for anything else.
    """
    if data is None:
        return {}
    try:
        return dict(_object_of(data)[0])
    except DecodeError:
        text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
        return {"raw": text}


def _object_of(
    data: str | bytes | Mapping[str, Any],
) -> tuple[Mapping[str, Any], bytes]:
    if isinstance(data, Mapping):
        return data, encode(data)
    # A surrogate of any kind gives bytes that are not UTF-8.
    payload = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return decode_object(payload), payload
