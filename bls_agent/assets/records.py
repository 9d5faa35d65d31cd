"""The records of the asset library, and how they are read and written. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.core.codec import JSONObject, decode, decode_object, parse_timestamp
from bls_agent.core.errors import DecodeError, ManifestFault

if TYPE_CHECKING:
    from bls_agent.assets.manifest import AssetManifest

CATEGORIES: Final = ("tool", "prompt", "skill")
REQUIRED: Final = ("id", "version", "category", "name")
OF_TOOLS: Final = ("agent_specs", "runtime")  # fields that a tool must have
SUMMARY: Final = ("id", "name", "category", "version", "description")
SHORT: Final = 100  # longest description in the index, in code points
OPTIONAL: Final = ("description", "author", "config_schema", "agent_specs", "runtime")
KEPT: Final = 1_000  # changes that Redis keeps
DIGITS: Final = 20  # digits of the largest 64-bit number
JSON_FIELDS: Final = ("config_schema", "agent_specs", "runtime")
TIMES: Final = ("created_at", "updated_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """One asset of the library, with all its fields.

    Attributes:
        id: Unique id in the library.
        version: Semantic version.
        category: ``tool``, ``prompt`` or ``skill``.
        name: Name that people read.
        description: What the asset does, or ``""``.
        author: Who maintains the asset, or ``""``.
        config_schema: The settings that a user fills in.
        agent_specs: What a language model reads about the asset, or ``None``.
        runtime: What runs the asset, or ``None``. The library never executes anything.
        github_path: Path of the manifest in the repository.
        github_sha: SHA of the manifest, which shows whether the file has changed.
        created_at: Unix seconds, ``None`` if Redis has no readable time.
        updated_at: Unix seconds of the last change, or ``None``.
        faults: Optional fields that cannot be read, each with the reason. These fields
            are left empty. A stored ``""`` or ``null`` is no fault.
    """

    id: str
    version: str
    category: str
    name: str
    description: str = ""
    author: str = ""
    config_schema: list[JSONObject] = field(default_factory=list[JSONObject])
    agent_specs: JSONObject | None = None
    runtime: JSONObject | None = None
    github_path: str = ""
    github_sha: str = ""
    created_at: int | None = None
    updated_at: int | None = None
    faults: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def read(cls, pairs: Mapping[bytes, bytes]) -> Self:
        """Make an asset from the fields of its hash. Unknown fields are ignored.

        Raises DecodeError if a required field is missing.
        """
        for name in REQUIRED:
            if not pairs.get(name.encode()):
                raise DecodeError("not_an_asset", b"", f"its {name} is missing")
        values, faults = read_fields(pairs)
        return cls(**values, faults=faults)


class AssetSummary(NamedTuple):
    """The entry of one asset in the index.

    This package writes at most 100 characters of the description.
    """

    id: str
    name: str
    category: str
    version: str
    description: str = ""

    @classmethod
    def read(cls, asset_id: bytes, payload: bytes) -> Self:
        """Read the entry of an asset in the index.

        A description that is no text is read as ``""``. Raises DecodeError if the entry
        is invalid or has another id than ``asset_id``.
        """
        get = decode_object(payload).get
        description = get("description")
        found = cls(
            get("id", ""), get("name", ""), get("category", ""), get("version", ""),
            description if isinstance(description, str) else "",
        )  # fmt: skip
        if set(map(type, found)) != _ONLY_TEXT or not all(found[:4]):
            raise DecodeError("not_an_asset", payload, "one of its fields is no text")
        if found.id != read_text(asset_id):
            raise DecodeError("not_an_asset", payload, "its id is another one")
        return found

    @classmethod
    def of_fields(cls, fields: Sequence[bytes | None]) -> Self:
        """Make a summary from the values of the hash fields in :data:`SUMMARY`."""
        id_, name, category, version, description = (
            read_text(one or b"") for one in fields
        )
        return cls(id_, name, category, version, description[:SHORT])


_ONLY_TEXT: Final = {str}


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What one synchronisation did, or would do.

    Attributes:
        status: ``unchanged``, ``complete``, ``failed``, or ``planned`` for a dry run.
        commit: The commit that was read, ``""`` if no commit was read.
        created: Sorted ids of new assets.
        updated: Sorted ids of assets that have changed or moved to another file.
        deleted: Sorted ids of assets that no file of the commit describes any more.
        kept: Sorted ids of assets that were left unchanged, because their file is
            broken or the deletion is in doubt.
        broken: Faults of files that could not be used, and refusals of Redis.
        reason: Why the synchronisation failed or would fail, or ``""``.
        seconds: Duration of the synchronisation.
        source: Name of the source.
        total: Number of assets once the whole plan is executed; 0 without a plan.
        content: Hash of the files if the source is a folder under Git, because the
            files may differ from the commit. ``""`` for every other source.
        base_path: The only folder that was read, ``""`` for all folders.
    """

    status: str
    commit: str = ""
    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    broken: tuple[ManifestFault, ...] = ()
    reason: str = ""
    seconds: float = 0.0
    source: str = ""
    total: int = 0
    content: str = ""
    base_path: str = ""

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Read a report from JSON. Raises DecodeError if the payload is no report."""
        found = decode_object(payload)
        try:
            values: dict[str, Any] = {
                name: found[name] for name in cls.__slots__ if name in found
            }
            values |= {name: tuple(found[name]) for name in _LISTS}
            values["broken"] = tuple(ManifestFault(**one) for one in found["broken"])
            report = cls(**values)
            _check_types(report)
        except (KeyError, TypeError) as error:
            raise DecodeError("not_a_report", payload, str(error)) from None
        return report


_LISTS: Final = ("created", "updated", "deleted", "kept")


def _check_types(report: SyncReport) -> None:
    """Raise TypeError if a value of a report that was read has the wrong type."""
    for one in fields(report):
        kinds = _KINDS.get(str(one.type), object)
        if not isinstance(getattr(report, one.name), kinds):
            message = f"its {one.name} is no {one.type}"
            raise TypeError(message)
    texts = [text for name in _LISTS for text in getattr(report, name)]
    texts += [getattr(fault, name) for fault in report.broken for name in _FAULT_TEXTS]
    if not all(isinstance(text, str) for text in texts):
        message = "one of its ids or faults is no text"
        raise TypeError(message)


# Annotation of a field → the types that JSON gives for it.
_KINDS: Final[dict[str, type | tuple[type, ...]]] = {
    "str": str, "int": int, "float": (int, float)
}  # fmt: skip
_FAULT_TEXTS: Final = [one.name for one in fields(ManifestFault) if one.type == "str"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncState:
    """The content of ``asset:sync:state``, and the last report.

    Attributes:
        last_sync_time: Unix seconds of the last complete synchronisation, or ``None``.
        last_commit_sha: Commit of the last complete synchronisation, or ``""``.
        synced_count: Number of assets after the last complete synchronisation, or
            ``None``.
        sync_status: ``idle``, ``syncing``, ``failed``, or ``""`` before the first
            synchronisation.
        is_interrupted: Whether the status is ``syncing`` but no synchronisation runs.
        report: The last report in Redis, ``None`` if there is no readable report.
    """

    last_sync_time: int | None = None
    last_commit_sha: str = ""
    synced_count: int | None = None
    sync_status: str = ""
    is_interrupted: bool = False
    report: SyncReport | None = None


class WriteOutcome(StrEnum):
    """What a write has changed. After ``same`` and ``lost``, nothing was written."""

    CREATED = "created"
    UPDATED = "updated"
    DELETED = "deleted"
    SAME = "same"  # nothing had to be written
    LOST = "lost"  # nothing was written, because this synchronisation lost the lease


class AssetWrite(NamedTuple):
    """One asset to be saved or deleted. ``AssetWrite(id)`` deletes an asset."""

    id: str
    category: str = ""  # for a deletion: the category in the asset's hash
    summary: bytes = b""
    fields: Mapping[str, bytes] = {}
    bad_time: bytes = b""  # the creation time in the hash if readers cannot read it

    @property
    def is_deletion(self) -> bool:
        return not self.summary

    @classmethod
    def of(cls, manifest: AssetManifest, *, path: str, sha: str) -> Self:
        """Encode a manifest for the asset's hash and index."""
        from bls_agent.assets.manifest import (  # noqa: PLC0415 - it needs the extra
            index_entry,
            metadata_fields,
        )

        fields = metadata_fields(manifest, path, sha)
        return cls(manifest.id, manifest.category, index_entry(manifest), fields)

    @property
    def size(self) -> int:
        """Approximate size of the request in bytes, for dividing many writes."""
        return 500 + len(self.summary) + sum(map(len, self.fields.values()))

    def arguments(self, token: str) -> list[Argument]:
        """Return the arguments of ``write_asset.lua``, which checks ``token``."""
        words: list[Argument] = [token, self.id, self.summary, KEPT, self.bad_time]
        if not self.is_deletion:
            fields = dict.fromkeys(OPTIONAL, b"") | dict(self.fields)
            words += chain.from_iterable(fields.items())
        return words


def pair(reply: Reply) -> dict[bytes, bytes]:
    """Return a dictionary from a reply in which fields and values alternate."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def read_text(payload: bytes) -> str:
    """Decode UTF-8. Invalid bytes become the character U+FFFD."""
    return payload.decode("utf-8", "replace")


def read_whole(payload: bytes | None) -> int | None:
    """Return a number of at most 20 digits, or ``None`` for any other payload."""
    if not payload or not payload.isdigit() or len(payload) > DIGITS:
        return None
    return int(payload)


def is_time(payload: bytes) -> bool:
    """Return whether a stored time is a number or ISO-8601."""
    try:
        read_time(payload)
    except DecodeError:
        return False
    return True


def read_time(payload: bytes) -> int:
    """Return Unix seconds from stored seconds or ISO-8601, without the fraction."""
    found = read_whole(_FRACTION.sub(b"", payload, count=1))
    moment = parse_timestamp(read_text(payload)) if found is None else None
    if found is None and moment is None:
        raise DecodeError("not_a_time", payload, "Unix seconds are expected")
    return int(moment.timestamp()) if moment else cast("int", found)


def read_fields(
    pairs: Mapping[bytes, bytes],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the known fields of a hash, and find fields that cannot be read.

    Returns the values by field, and a reason for each field that cannot be read. An
    empty field counts as absent, and so does a JSON field that is ``null``.
    """
    values: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, read in _READERS.items():
        payload = pairs.get(name.encode())
        if not payload or (name in JSON_FIELDS and payload.strip() == b"null"):
            continue
        try:
            values[name] = read(payload)
        except DecodeError as error:
            faults[name] = str(error)
    return values, faults


def _read_objects(payload: bytes) -> list[JSONObject]:
    found = decode(payload)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise DecodeError("not_an_asset", payload, "a list of objects is expected")
    return cast("list[JSONObject]", found)


_FRACTION: Final = re.compile(rb"(?<=\d)\.\d*\Z")
_READERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    **dict.fromkeys(("id", "version", "category", "name"), read_text),
    **dict.fromkeys(("description", "author", "github_path", "github_sha"), read_text),
    **dict.fromkeys(("agent_specs", "runtime"), decode_object),
    **dict.fromkeys(TIMES, read_time),
    "config_schema": _read_objects,
}
