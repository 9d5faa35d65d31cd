"""What the asset library holds: read tolerantly, written to the byte. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.core.codec import JSONObject, decode, decode_object, parse_timestamp
from bls_agent.core.errors import DecodeError, ManifestFault

if TYPE_CHECKING:
    from bls_agent.assets.manifest import AssetManifest

CATEGORIES: Final = ("tool", "prompt", "skill")
REQUIRED: Final = ("id", "version", "category", "name")
OF_TOOLS: Final = ("agent_specs", "runtime")  # required of a tool
SUMMARY: Final = ("id", "name", "category", "version", "description")
SHORT: Final = 100  # code points of a description in the index
OPTIONAL: Final = ("description", "author", "config_schema", "agent_specs", "runtime")
KEPT: Final = 1_000  # changes
DIGITS: Final = 20  # of a number of 64 bit
JSON_FIELDS: Final = ("config_schema", "agent_specs", "runtime")
TIMES: Final = ("created_at", "updated_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """All that the library holds of one asset.

    Attributes:
        id: Its name in the library.
        version: Semantic version.
        category: ``tool``, ``prompt`` or ``skill``.
        name: For people.
        description: What it does, or ``""``.
        author: Or ``""``.
        config_schema: The settings that a user fills in.
        agent_specs: What a language model gets, ``None`` if there is nothing.
        runtime: What runs it, ``None`` if nothing does. It is never executed here.
        github_path: Its manifest in the repository.
        github_sha: SHA of that file, by which a change is noticed.
        created_at: Unix seconds, ``None`` if no readable time is stored.
        updated_at: Unix seconds of the last change, or ``None``.
        faults: Optional fields that are left empty because they cannot be read, each
            with the reason. ``""`` and ``null`` are no faults.
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
        """Read the fields of a hash; unknown ones are left out.

        DecodeError if a required field is missing.
        """
        for name in REQUIRED:
            if not pairs.get(name.encode()):
                raise DecodeError("not_an_asset", b"", f"its {name} is missing")
        values, faults = read_fields(pairs)
        return cls(**values, faults=faults)


class AssetSummary(NamedTuple):
    """What the index holds of one asset, its description cut at 100 characters."""

    id: str
    name: str
    category: str
    version: str
    description: str = ""

    @classmethod
    def read(cls, asset_id: bytes, payload: bytes) -> Self:
        """Read a value of the index; DecodeError if it is none, or of another asset.

        A description that is no text is left empty.
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
        """Make the summary of a hash from the values of :data:`SUMMARY`."""
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
        commit: The commit that was read, ``""`` if none was reached.
        created: Ids, sorted; so the next three.
        updated: Changed, or moved to another file.
        deleted: No file of the commit describes them any more.
        kept: Left as they were: their file is broken or the deletion is in doubt.
        broken: Files that could not be used, with the reasons.
        reason: Why it failed, else ``""``.
        seconds: How long it took.
        source: Where it read from.
        total: Assets afterwards.
        content: What identified the files where the commit did not, else ``""``.
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

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """Read the report of the last synchronisation; DecodeError if it is none."""
        found = decode_object(payload)
        try:
            values: dict[str, Any] = {
                name: found[name] for name in cls.__slots__ if name in found
            }
            values |= {name: tuple(found[name]) for name in _LISTS}
            values["broken"] = tuple(ManifestFault(**one) for one in found["broken"])
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise DecodeError("not_a_report", payload, str(error)) from None


_LISTS: Final = ("created", "updated", "deleted", "kept")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncState:
    """The content of ``asset:sync:state``, and the last report.

    Attributes:
        last_sync_time: Unix seconds of the last complete synchronisation, or ``None``.
        last_commit_sha: The commit that the library is equal to, or ``""``.
        synced_count: Assets after the last complete synchronisation, or ``None``.
        sync_status: ``idle``, ``syncing``, ``failed``, ``""`` before the first one.
        is_interrupted: Whether the status is ``syncing`` although no synchronisation runs.
        report: What the last synchronisation did, if it wrote that.
    """

    last_sync_time: int | None = None
    last_commit_sha: str = ""
    synced_count: int | None = None
    sync_status: str = ""
    is_interrupted: bool = False
    report: SyncReport | None = None


class WriteOutcome(StrEnum):
    """What a write did to an asset."""

    CREATED = "created"
    UPDATED = "updated"
    DELETED = "deleted"
    SAME = "same"  # nothing had to be written
    LOST = "lost"  # nothing was written: another synchronisation holds the lease


class AssetWrite(NamedTuple):
    """What is to be written of one asset; without a summary it is deleted."""

    id: str
    category: str = ""
    summary: bytes = b""
    fields: Mapping[str, bytes] = {}

    @classmethod
    def of(cls, manifest: AssetManifest, *, path: str, sha: str) -> Self:
        """Encode a manifest."""
        from bls_agent.assets.manifest import (  # noqa: PLC0415 - stands on the extra
            index_entry,
            metadata_fields,
        )

        fields = metadata_fields(manifest, path, sha)
        return cls(manifest.id, manifest.category, index_entry(manifest), fields)

    @property
    def size(self) -> int:
        """About how many bytes are sent."""
        return 500 + len(self.summary) + sum(map(len, self.fields.values()))

    def arguments(self, token: str) -> list[Argument]:
        """Return the script's arguments."""
        words: list[Argument] = [token, self.id, self.summary, KEPT]
        if self.summary:
            for name, value in (
                dict.fromkeys(OPTIONAL, b"") | dict(self.fields)
            ).items():
                words += (name, value)
        return words


def pair(reply: Reply) -> dict[bytes, bytes]:
    """Make pairs of fields and values that alternate."""
    return dict(zip(reply[::2], reply[1::2], strict=True))


def read_text(payload: bytes) -> str:
    """Read a text; bytes that are no UTF-8 are shown as such."""
    return payload.decode("utf-8", "replace")


def read_whole(payload: bytes | None) -> int | None:
    """Read a whole number that is not negative; ``None`` for anything else."""
    if not payload or not payload.isdigit() or len(payload) > DIGITS:
        return None
    return int(payload)


def is_time(payload: bytes) -> bool:
    """Return whether a stored time can be read."""
    try:
        read_time(payload)
    except DecodeError:
        return False
    return True


def read_time(payload: bytes) -> int:
    """Read a time as Unix seconds: whole, with a fraction, or as ISO-8601 text."""
    found = read_whole(_FRACTION.sub(b"", payload, count=1))
    moment = parse_timestamp(read_text(payload)) if found is None else None
    if found is None and moment is None:
        raise DecodeError("not_a_time", payload, "Unix seconds are expected")
    return int(moment.timestamp()) if moment else cast("int", found)


def read_fields(
    pairs: Mapping[bytes, bytes],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the known fields of a hash, and name those that cannot be read.

    Returns the values and, by field, the reasons. An empty field is absent, and so is a
    JSON field that is ``null``.
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
