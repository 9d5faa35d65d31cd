"""Decides which assets a synchronisation writes and deletes. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bls_agent.assets.manifest import AssetManifest, path_fault
from bls_agent.assets.records import AssetWrite, SyncReport
from bls_agent.assets.sources import (
    MOST_BYTES,
    SourceFile,
    is_manifest_path,
    show_path,
)
from bls_agent.core.errors import ManifestFault

MANY: Final = 0.2  # share of all assets; more deletions need ``force``


@dataclass(frozen=True, slots=True)
class KnownAsset:
    """The facts about an asset in Redis that a plan needs."""

    id: str
    path: str = ""  # path of the manifest, ``""`` if unknown
    sha: str = ""  # SHA of the file's content, ``""`` if unknown
    is_sound: bool = True  # whether hash, index and category sets agree


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """The writes and deletions that a synchronisation is going to execute.

    Attributes:
        writes: Assets to be written, sorted by id.
        report: Ids that the plan creates, updates, deletes and keeps (``planned``).
        refusal: Why the plan must not be executed, or ``""``.
    """

    writes: tuple[AssetWrite, ...]
    report: SyncReport
    refusal: str


def choose_files(
    files: Iterable[SourceFile], base_path: str = ""
) -> tuple[list[SourceFile], list[ManifestFault]]:
    """Return the manifests among the files of a commit, and faults of unusable files.

    If a folder has a ``manifest.yaml`` or ``manifest.yml``, YAML files with other names
    in this folder and below it belong to that asset and are left out. Elsewhere each
    YAML file is a manifest.
    """
    start = f"{base_path}/" if base_path else ""
    found = {
        file.path: file
        for file in files
        if is_manifest_path(file.path) and file.path.startswith(start)
    }
    owners = {path.rpartition("/")[0] for path in found if _is_main(path)}
    chosen: list[SourceFile] = []
    faults: list[ManifestFault] = []
    for path in sorted(found):
        if not _is_main(path) and owners.intersection(_folders(path)):
            continue
        if reason := _file_fault(found[path]):
            remedy = "Rename, replace or remove it."
            faults.append(ManifestFault(show_path(path), reason, remedy))
        else:
            chosen.append(found[path])
    return chosen, faults


def _is_main(path: str) -> bool:
    return path.rpartition("/")[2].lower() in {"manifest.yaml", "manifest.yml"}


def _folders(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[:n]) for n in range(len(parts) + 1)]


def _file_fault(file: SourceFile) -> str:
    if file.is_link:
        return "it is a symlink, which is not followed"
    if file.size > MOST_BYTES:
        return f"a manifest has at most {MOST_BYTES // 1024} KB, this file {file.size:,} bytes"
    return path_fault(file.path)


def files_to_read(
    files: Iterable[SourceFile], known: Iterable[KnownAsset], *, force: bool = False
) -> list[SourceFile]:
    """Return files that are new or changed, or whose asset in Redis is damaged.

    With ``force``, return all files.
    """
    unchanged = _paths_by_content(known)
    return [one for one in files if force or (one.path, one.sha) not in unchanged]


def _paths_by_content(known: Iterable[KnownAsset]) -> dict[tuple[str, str], str]:
    """Map path and SHA to the id of a sound asset. Leave out keys of several assets."""
    found: dict[tuple[str, str], str] = {}
    twice: set[tuple[str, str]] = set()
    for one in known:
        place = (one.path, one.sha)
        if place in found:
            twice.add(place)
        if one.is_sound:
            found[place] = one.id
    return {place: one for place, one in found.items() if place not in twice}


def make_plan(
    commit: str,
    files: Sequence[SourceFile],
    known: Sequence[KnownAsset],
    manifests: Mapping[str, AssetManifest],
    faults: Sequence[ManifestFault],
    *,
    force: bool = False,
) -> SyncPlan:
    """Decide what to write and what to delete.

    There are four cases for an asset:

    1. One file describes the asset, and the file was read: the asset is written.
    2. One file describes the asset, and the file has not changed: nothing is written.
    3. Several files have the asset's id: each file counts as broken, and the asset is
       kept unchanged.
    4. No file describes the asset: the asset is deleted, unless a broken file may
       describe the asset.

    ``files`` are the files that :func:`choose_files` returned, and ``known`` are all
    assets of the library. ``manifests`` maps paths to the manifests that were read.
    ``faults`` are the faults of files that could not be used. ``force`` allows any
    number of deletions.
    """
    shas = {file.path: file.sha for file in files}
    broken_paths = {fault.path for fault in faults}
    ids = {one.id for one in known}
    unchanged = _paths_by_content(known)
    claims: dict[str, list[str]] = defaultdict(list)
    for path, sha in shas.items():
        if path in manifests:
            claims[manifests[path].id].append(path)
        elif path not in broken_paths:
            claims[unchanged[path, sha]].append(path)
    twice = {asset_id: paths for asset_id, paths in claims.items() if len(paths) > 1}
    writes = tuple(
        AssetWrite.of(manifests[path], path=path, sha=shas[path])
        for _, (path, *others) in sorted(claims.items())
        if path in manifests and not others
    )
    unclaimed = ids - claims.keys()
    broken = (*faults, *_duplicates(twice))
    kept = _unclear(unclaimed, known, broken)
    deleted = tuple(sorted(unclaimed - kept))
    refusal = ""
    if len(deleted) > MANY * len(ids) and not force:
        refusal = (
            f"{len(deleted)} of {len(ids)} assets would be deleted, more than "
            f"{MANY:.0%}; nothing was changed. Check the branch and the path, then use force."
        )
    report = SyncReport(
        status="planned",
        commit=commit,
        created=tuple(one.id for one in writes if one.id not in ids),
        updated=tuple(one.id for one in writes if one.id in ids),
        deleted=deleted,
        kept=tuple(sorted(kept | (twice.keys() & ids))),
        broken=broken,
        total=len(ids | {one.id for one in writes}) - len(deleted),
        reason=refusal or sum_up(broken),
    )
    return SyncPlan(writes, report, refusal)


def sum_up(faults: Sequence[ManifestFault]) -> str:
    """Return a line with the number of broken files and the first fault."""
    if not faults:
        return ""
    files = len({fault.path for fault in faults})
    return f"{files} file{'s' * (files > 1)} could not be used: {faults[0]}"


def _unclear(
    unclaimed: set[str], known: Sequence[KnownAsset], faults: Sequence[ManifestFault]
) -> set[str]:
    """Return the ids in ``unclaimed`` whose assets a broken file may describe.

    There are three cases for a broken file:

    1. Its id cannot be read: all unclaimed assets are kept, because the file may be the
       moved manifest of any asset, also if another asset had this path before.
    2. The file contains the id of an unclaimed asset: this asset is kept.
    3. The file has the path of an unclaimed asset: this asset is kept.
    """
    if not all(fault.id for fault in faults):
        return set(unclaimed)
    broken = {fault.path for fault in faults}
    named = {fault.id for fault in faults}
    return {
        one.id
        for one in known
        if one.id in unclaimed and (one.path in broken or one.id in named)
    }


def _duplicates(twice: Mapping[str, Sequence[str]]) -> list[ManifestFault]:
    return [
        ManifestFault(
            path,
            f"{len(paths)} files have the id {asset_id!r}: {', '.join(paths[:5])}",
            "Give each a different id; the asset was not changed.",
            "id",
            id=asset_id,
        )
        for asset_id, paths in sorted(twice.items())
        for path in paths
    ]
