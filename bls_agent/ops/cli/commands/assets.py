"""``bls-agent assets``: the library of tools, prompts and skills."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import anyio
from typer import Argument, Option

from bls_agent.assets import AssetLibrary, AssetSummary
from bls_agent.assets.library import search_summaries
from bls_agent.core.errors import ManifestError, ManifestFault
from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.errors import Exit, Failure, find_likely, misspelt
from bls_agent.ops.cli.output import Invocation
from bls_agent.ops.cli.tables import Layout, Table
from bls_agent.ops.terminal import Cell, json_text
from bls_agent.ops.texts import Texts

if TYPE_CHECKING:
    from bls_agent.assets import AssetManifest, Source, SyncReport
    from bls_agent.assets.sync import SyncStep

TOKENS: Final = ("BLS_GITHUB_TOKEN", "GITHUB_TOKEN")
GITHUB: Final = "github:"
BAR: Final = 20  # columns
LIST: Final = Layout(
    "asset", dict.fromkeys(("id", "category", "version", "name", "description"), 0)
)
MARKS: Final = {
    "created": ("+", "green"),
    "updated": ("~", "cyan"),
    "deleted": ("-", "red"),
    "kept": ("=", "yellow"),
}

# A URL, or the short form user@host:path. Any other source is a folder.
_GIT: Final = re.compile(r"[a-z][a-z0-9+.-]*://|[\w.-]+@[\w.-]+:")

_SourceArgument: TypeAlias = Annotated[str, Argument(metavar="SOURCE")]
_NameOption: TypeAlias = Annotated[str, Option(metavar="NAME")]
_PathOption: TypeAlias = Annotated[str, Option(metavar="PATH")]
_UrlOption: TypeAlias = Annotated[str, Option(metavar="URL")]


def _open_source(source: str, branch: str, base_path: str, base_url: str) -> Source:
    """Open ``SOURCE``: a repository on GitHub or any Git server, or a folder."""
    if source.startswith(GITHUB):
        from bls_agent.assets import GitHubSource

        token = next(filter(None, map(os.environ.get, TOKENS)), "")
        chosen = {"branch": branch, "base_url": base_url, "token": token}
        given: dict[str, Any] = {name: one for name, one in chosen.items() if one}
        repo = source.removeprefix(GITHUB)
        return GitHubSource(repo, base_path=base_path, **given)
    if _GIT.match(source):
        from bls_agent.assets import GitSource

        return GitSource(source, base_path=base_path, branch=branch)
    if branch or base_url:
        raise Failure("asset_no_branch", Exit.USAGE, source=source)
    from bls_agent.assets import DirectorySource

    return DirectorySource(source, base_path=base_path)


@asynccontextmanager
async def _library(invocation: Invocation) -> AsyncGenerator[AssetLibrary]:
    """Open the library; print its warnings, also about outages, on standard error."""
    with _show_warnings(invocation):
        async with AssetLibrary(invocation.redis) as library:
            yield library


@contextmanager
def _show_warnings(invocation: Invocation) -> Generator[None]:
    """Show the warnings of the package as sentences while the block runs."""
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: invocation.warn("plain", text=record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("bls_agent")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@command("assets list", default=True)
async def list_assets(
    invocation: Invocation,
    category: _NameOption = "",
    search: Annotated[str, Option(metavar="TEXT")] = "",
) -> Exit:
    async with _library(invocation) as library:
        with invocation.waiting("waiting_redis"):
            found = await library.list(category or None)
            if search:
                found = search_summaries(found, search)
            state = await library.sync_state()
    table = Table(invocation, LIST, _describe, _describe, found)
    table.write(empty="no_assets_found" if search or category else "no_assets")
    # The library can be read, but may be older than its source.
    if state.is_interrupted:
        invocation.warn("asset_interrupted")
    elif state.sync_status == "failed":
        reason = state.report.reason if state.report else "?"
        invocation.warn("asset_sync_failed", reason=reason)
    return Exit.DONE


def _describe(one: AssetSummary) -> dict[str, str]:
    return dict(one._asdict())


@command("assets get")
async def get(
    invocation: Invocation, asset: Annotated[str, Argument(metavar="ID")]
) -> Exit:
    """Show all fields of one asset in the library."""
    async with _library(invocation) as library:
        with invocation.waiting("waiting_redis"):
            found = await library.get(asset)
            known = [] if found else [one.id for one in await library.list()]
    if asset in known:
        raise Failure(
            "asset_unreadable", Exit.FAILED, hint="hint_asset_doctor", asset=asset
        )
    if found is None:
        likely = find_likely(asset, known)
        raise misspelt("no_such_asset", likely, "hint_assets", asset=asset)
    if invocation.json:
        invocation.out.json(asdict(found))
        return Exit.DONE
    rows = [
        [name, value if isinstance(value, str) else json_text(value)]
        for name, value in asdict(found).items()
        if value not in ("", None, [], {})
    ]
    invocation.out.table(rows)
    return Exit.DONE


@command("assets watch")
async def watch(invocation: Invocation) -> Exit:
    async with _library(invocation) as library:
        await library.sync_state()  # fail at once during an outage
        async for asset_id in library.watch():
            found = await library.get(asset_id)
            value = {"id": asset_id, "asset": asdict(found) if found else None}
            deleted = invocation.texts["asset_gone"] if invocation.out.terminal else ""
            cells = (found.category, found.version, found.name) if found else None
            invocation.record(value, asset_id, *(cells or ("-", "-", deleted)))
    return Exit.DONE


@command("assets sync")
async def sync(
    invocation: Invocation,
    source: _SourceArgument,
    branch: _NameOption = "",
    base_path: _PathOption = "",
    base_url: _UrlOption = "",
    *,
    force: bool = False,
    wait: Annotated[float, Option(metavar="SECONDS", min=0)] = 0.0,
    dry_run: bool = False,
) -> Exit:
    """Synchronise; exit 1 if it failed, and 3 if a dry run has found a problem."""
    where = _open_source(source, branch, base_path, base_url)
    from bls_agent.assets import AssetSync

    with _show_warnings(invocation), invocation.waiting("asset_waiting") as progress:

        def tell(step: SyncStep) -> None:
            text = shown_step(invocation.texts, step)
            progress.tell(invocation.err.encodable(text))

        async with AssetSync(
            invocation.redis, where, wait=0.0 if dry_run else wait, on_progress=tell
        ) as syncing:
            report = await syncing.run(force=force, dry_run=dry_run)
    if invocation.json:
        invocation.out.json(asdict(report))
    else:
        _show_sync(invocation, report, dry_run=dry_run)
    if report.status == "failed":
        return Exit.FAILED
    return Exit.UNHEALTHY if dry_run and report.reason else Exit.DONE


def _show_sync(invocation: Invocation, report: SyncReport, *, dry_run: bool) -> None:
    for name, (mark, style) in MARKS.items():
        for asset_id in getattr(report, name):
            _line(invocation, name, (mark, style), asset_id)
    for fault in report.broken:
        _line(invocation, "broken", ("!", "bold red"), *_place_and_rule(fault))
    counts = {name: len(getattr(report, name)) for name in (*MARKS, "broken")}
    values = {"commit": report.commit[:12] or "-", "seconds": f"{report.seconds:.1f}"}
    invocation.hint(f"asset_{report.status}", **counts, **values)
    if report.reason:
        name = "asset_plan_reason" if dry_run else "asset_sync_reason"
        invocation.warn(name, reason=report.reason)


def _line(invocation: Invocation, name: str, mark: Cell, *cells: str) -> None:
    """Write ``+ id`` for people, and ``created<TAB>id`` into a pipe."""
    if invocation.out.terminal:
        text = ": ".join(cell for cell in cells if cell)
        invocation.out.line(mark, " ", text)
    else:
        invocation.out.fields(name, *cells)


def shown_step(texts: Texts, step: SyncStep) -> str:
    """Return the progress of a synchronisation, with a bar if the total is known."""
    filled = BAR * step.done // step.total if step.total else 0
    return texts[f"asset_phase_{step.phase}"].format(
        bar="█" * filled + "░" * (BAR - filled) if step.total else "",
        done=f"{step.done:,}",
        total=f"{step.total:,}",
        size=f"{step.size / 2**20:,.1f}",
    )


@command("assets validate")
async def validate(
    invocation: Invocation,
    source: _SourceArgument,
    branch: _NameOption = "",
    base_path: _PathOption = "",
    base_url: _UrlOption = "",
) -> Exit:
    """Check manifests; needs no Redis."""
    with invocation.waiting("asset_waiting"):
        if await anyio.Path(source).is_file():
            read, faults = 1, _check_file(Path(source))
        else:
            where = _open_source(source, branch, base_path, base_url)
            read, faults = await _check_all(where)
    for fault in faults:
        place, *rest = _place_and_rule(fault)
        if invocation.out.terminal and not invocation.json:
            text = ": ".join(one for one in rest if one)
            invocation.out.line((f"{place}: ", "bold"), text)
        else:
            invocation.record(asdict(fault), place, *rest)
    broken = len({fault.path for fault in faults})
    invocation.hint("asset_checked", count=read, faults=len(faults), broken=broken)
    return Exit.UNHEALTHY if faults else Exit.DONE


def _place_and_rule(fault: ManifestFault) -> tuple[str, str, str, str]:
    place = f"{fault.path}:{fault.line}" if fault.line else fault.path
    return place, fault.field, fault.reason, fault.remedy


def _check_file(path: Path) -> list[ManifestFault]:
    from bls_agent.assets import parse_manifest

    try:
        parse_manifest(path.read_bytes(), str(path))
    except ManifestError as error:
        return [*error.faults]
    return []


async def _check_all(source: Source) -> tuple[int, list[ManifestFault]]:
    """Count and read the manifests of a source, as a first synchronisation would."""
    from bls_agent.assets.plan import choose_files, make_plan
    from bls_agent.assets.sync import read_manifest

    manifests: dict[str, AssetManifest] = {}
    try:
        head = await source.head()
        files, faults = choose_files(await source.tree(head), source.base_path)
        async for file, content in source.fetch(head, files):
            try:
                manifests[file.path] = await read_manifest(file, content)
            except ManifestError as error:
                faults += error.faults
    finally:
        await source.aclose()
    plan = make_plan(head.commit, files, (), manifests, faults)
    return len(files), sorted(plan.report.broken, key=lambda one: (one.path, one.line))


@command("assets schema")
def schema(invocation: Invocation) -> Exit:
    from bls_agent.assets import manifest_schema

    made: Mapping[str, Any] = manifest_schema()
    invocation.out.json(made)
    return Exit.DONE
