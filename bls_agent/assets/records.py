"""What the asset library holds: read tolerantly, written to the byte. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.core.codec import JSONObject, decode, decode_object
from bls_agent.core.errors import DecodeError, ManifestFault

if TYPE_CHECKING:
    from bls_agent.assets.manifest import AssetManifest

CATEGORIES: Final = ("tool", "prompt", "skill")
OPTIONAL: Final = ("description", "author", "config_schema", "agent_specs", "runtime")
KEPT: Final = 1_000  # changes
DIGITS: Final = 20  # of a number of 64 bit


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
        updated_at: The same.
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

    @classmethod
    def read(cls, pairs: Mapping[bytes, bytes]) -> Self:
        """Read the fields of a hash; unknown ones are left out.

        DecodeError if a field that is needed is missing, or one is not readable.
        """
        for needed in ("id", "version", "category", "name"):
            if not pairs.get(needed.encode()):
                raise DecodeError("not_an_asset", b"", f"its {needed} is missing")
        found: dict[str, Any] = {}
        for name, read in _READERS.items():
            if (payload := pairs.get(name.encode())) is not None:
                found[name] = read(payload)
        return cls(**found)


class AssetSummary(NamedTuple):
    """What the index holds of one asset, its description cut at 100 characters."""

    id: str
    name: str
    category: str
    version: str
    description: str = ""

    @classmethod
    def read(cls, asset_id: bytes, payload: bytes) -> Self:
        """Read a value of the index; DecodeError if it is none, or of another asset."""
        get = decode_object(payload).get
        found = cls(
            get("id", ""), get("name", ""), get("category", ""), get("version", ""),
            get("description", ""),
        )  # fmt: skip
        if set(map(type, found)) != _ONLY_TEXT or not all(found[:4]):
            raise DecodeError("not_an_asset", payload, "one of its fields is no text")
        if found.id != read_text(asset_id):
            raise DecodeError("not_an_asset", payload, "its id is another one")
        return found


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
        is_interrupted: Whether it says ``syncing`` though no synchronisation is alive.
        report: What the last synchronisation did, if it wrote that.
    """

    last_sync_time: int | None = None
    last_commit_sha: str = ""
    synced_count: int | None = None
    sync_status: str = ""
    is_interrupted: bool = False
    report: SyncReport | None = None


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


def _objects(payload: bytes) -> list[JSONObject]:
    found = decode(payload)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise DecodeError("not_an_asset", payload, "a list of objects is expected")
    return cast("list[JSONObject]", found)


_READERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    **dict.fromkeys(("id", "version", "category", "name"), read_text),
    **dict.fromkeys(("description", "author", "github_path", "github_sha"), read_text),
    **dict.fromkeys(("agent_specs", "runtime"), decode_object),
    **dict.fromkeys(("created_at", "updated_at"), read_whole),
    "config_schema": _objects,
}
