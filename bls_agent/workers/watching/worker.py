"""One worker as the registry sees it: what its key said at one moment. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Self

from bls_agent.codec import cut_text, decode_object
from bls_agent.errors import DecodeError
from bls_agent.keys import OWNER, KeyTemplate
from bls_agent.names import place_beside
from bls_agent.workers.heartbeats import KINDS, WorkerHeartbeat, parse_heartbeat_data
from bls_agent.workers.schema import ROWS

__all__ = ["HEARTBEATS", "LARGEST", "SHOWN", "STALE", "Worker", "find_kind"]

HEARTBEATS: Final[Mapping[str, KeyTemplate]] = MappingProxyType(
    {name: row for name, row in ROWS.items() if name.endswith("_heartbeat")}
)
LARGEST: Final = 65_536  # bytes of a value that is read
SHOWN: Final = 4_096  # bytes that are kept of a larger one
STALE: Final = 0.5  # of the TTL: one and a half of the longest allowed intervals
NO_TTL: Final = "no_ttl"


def find_kind(key: bytes, kinds: Mapping[str, KeyTemplate]) -> str | None:
    """Say which kind of heartbeat a key is; ``None`` for somebody else's key."""
    for kind, template in kinds.items():
        if template.match(key):
            return kind
    return None


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A worker whose heartbeat is there.

    Attributes:
        kind: The kind of heartbeat: the row of the table of keys, such as
            ``"backtest_worker_heartbeat"``.
        id: The rest of its key: whose heartbeat it is. Bytes that are not UTF-8 are kept
            as surrogates, here and in ``key``.
        key: The whole key.
        heartbeat: What it says; ``None`` if that is no heartbeat, or of a kind whose
            value the contract leaves open (``component``, ``process``).
        raw: What it says, of whatever form: always a dict, see
            :func:`~bls_agent.workers.parse_heartbeat_data`.
        age: Seconds since it was refreshed, by the server's clock: what its TTL is short
            of the one it is given: the contract's, or what its lease says. ``None`` if
            nobody can tell: no TTL, or a longer one. A peer without a lease that gives a
            shorter one looks old to a single look; a watch learns which TTL it gives as
            soon as it sees a refresh.
        ttl: Seconds until the key expires; ``None`` if it does not.
        stale: Whether it was not refreshed for half of its TTL.
        problem: What is wrong with its key, in one word, or ``""``: ``wrong_type`` (the
            key is no string), ``too_large`` (over 64 KiB, or over 4 KiB where many are
            so large; the beginning is in ``raw``), ``not_utf8``, ``not_json``,
            ``too_deep``, ``not_an_object``, ``bad_field``, ``no_ttl`` (it looks alive
            for ever).
        payload: The bytes of the value.
    """

    kind: str
    id: str
    key: str
    heartbeat: WorkerHeartbeat | None = None
    raw: dict[str, Any] = field(default_factory=dict[str, Any])
    age: float | None = None
    ttl: float | None = None
    stale: bool = False
    problem: str = ""
    payload: bytes = field(default=b"", repr=False)

    @classmethod
    def read(
        cls,
        kind: str,
        key: bytes,
        payload: bytes | None,
        ttl: float | None,
        before: Self | None = None,
        *,
        largest: int = LARGEST,
    ) -> Self:
        """Take what a look at a key has found; never raises.

        Args:
            kind: The row of the key.
            key: As Redis gave it.
            payload: The value's first ``largest`` bytes and one more if there are more;
                ``None`` for a key that is no string.
            ttl: Seconds until it expires; ``None`` if it does not.
            before: What the look before has found: the same bytes say the same.
            largest: Bytes of a value that is understood.
        """
        if before is not None and payload and before.payload == payload:
            problem = "" if before.problem == NO_TTL else before.problem
            worker = replace(before, ttl=ttl, problem=problem)
        else:
            heartbeat, raw, problem = _understand(kind, payload, largest)
            text = key.decode("utf-8", "surrogateescape")
            worker = cls(
                kind=kind,
                id=text.removeprefix(HEARTBEATS[kind].template.partition("{")[0]),
                key=text,
                heartbeat=heartbeat,
                raw=raw,
                ttl=ttl,
                problem=problem,
                payload=(payload or b"")[: SHOWN if problem == "too_large" else None],
            )
        if ttl is None and not worker.problem:
            worker = replace(worker, problem=NO_TTL)
        return worker if payload is None else worker.judged(worker.row_ttl)

    @property
    def row_ttl(self) -> float:
        """Seconds that a heartbeat of this kind lives by its contract."""
        return float(HEARTBEATS[self.kind].ttl or 0)

    @property
    def owner_key(self) -> bytes:
        """The key of the lease beside its key, as Redis knows it."""
        key = OWNER.locate(place=place_beside(self.key))
        return key.encode("utf-8", "surrogateescape")

    def judged(self, given: float) -> Self:
        """Give the same, its age as if its key had been written with this TTL."""
        age = None if self.ttl is None or self.ttl > given else given - self.ttl
        stale = age is not None and age >= given * STALE
        return replace(self, age=age, stale=stale)

    @property
    def content(self) -> tuple[str, dict[str, Any]]:
        """What it says but for when: two looks are compared by it."""
        times = ("timestamp", "last_heartbeat")
        return self.problem, {n: v for n, v in self.raw.items() if n not in times}


def _understand(
    kind: str, payload: bytes | None, largest: int
) -> tuple[WorkerHeartbeat | None, dict[str, Any], str]:
    """Read a value: as a heartbeat, as a dict, and what is wrong with it."""
    if payload is None:
        return None, {}, "wrong_type"
    if len(payload) > largest:
        text = payload[:SHOWN].decode("utf-8", "replace")
        return None, {"raw": cut_text(text, SHOWN)}, "too_large"
    if kind not in KINDS:
        return None, parse_heartbeat_data(payload), _say_text(payload)
    raw: dict[str, Any] | None = None
    try:
        raw = decode_object(payload)  # once: its texts are shared by both readings
        return KINDS[kind].from_json(raw), raw, ""
    except DecodeError as error:
        found = parse_heartbeat_data(payload) if raw is None else raw
        return None, found, error.reason


def _say_text(payload: bytes) -> str:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return "not_utf8"
    return ""
