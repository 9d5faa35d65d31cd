"""Makes the asset library equal to a source of manifests.

A plan is made without I/O, and then executed. If a file cannot be used, its asset is
kept. An asset is deleted only if certainly no file describes the asset. The commit is
recorded at the end, and only after success. So the synchronisation after a failed one
reads the source again and writes what is missing.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Final, Self

import anyio
import anyio.to_thread

from bls_agent.assets.library import (
    INDEX,
    REPORT,
    STATE,
    AssetLibrary,
    category_key,
    metadata_key,
    portions,
)
from bls_agent.assets.manifest import AssetManifest, parse_manifest
from bls_agent.assets.plan import (
    KnownAsset,
    SyncPlan,
    choose_files,
    files_to_read,
    make_plan,
    sum_up,
)
from bls_agent.assets.records import (
    CATEGORIES,
    JSON_FIELDS,
    KEPT,
    OF_TOOLS,
    SUMMARY,
    TIMES,
    AssetSummary,
    AssetWrite,
    SyncReport,
    SyncState,
    WriteOutcome,
    pair,
    read_fields,
    read_text,
)
from bls_agent.assets.sources import Head, Source, SourceFile, blob_sha
from bls_agent.connection.access import RedisOrAgent
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Reply, Request
from bls_agent.core.backoff import Backoff
from bls_agent.core.checks import check_seconds, check_wait
from bls_agent.core.codec import encode
from bls_agent.core.errors import (
    ConfigurationError,
    DecodeError,
    LeaseHeldError,
    ManifestError,
    ManifestFault,
    RedisRefusedError,
    RedisUnavailableError,
    SourceError,
    WrongTypeError,
)
from bls_agent.core.keys import checked_reply
from bls_agent.core.redaction import redact
from bls_agent.runtime.lease import Lease
from bls_agent.runtime.tasks import start_background

logger: logging.Logger = logging.getLogger(__name__)

SHOWN_FAULTS: Final = 100  # faults in the report that Redis keeps
LONGEST_WAIT: Final = 3_600.0  # seconds; a rate limit of GitHub ends within an hour
COMPARED: Final = (*SUMMARY, "github_path", "github_sha", *JSON_FIELDS, *TIMES)
LOST: Final = "its lease is lost: another synchronisation may have taken over"
INTERRUPTED: Final = "it was interrupted"


@dataclass(frozen=True, slots=True)
class SyncStep:
    """The progress of a synchronisation.

    Attributes:
        phase: ``read`` (the list of files), ``download`` or ``write``.
        done: Number of files or assets that are done.
        total: Number of all files or assets of the phase.
        size: Bytes downloaded so far.
    """

    phase: str
    done: int = 0
    total: int = 0
    size: int = 0


class AssetSync:
    """Makes the asset library equal to a source.

    Only one synchronisation runs at a time, even among several processes, because each
    synchronisation needs the lease on ``asset:sync:state``. The lease lasts 15 seconds
    and is renewed while the synchronisation runs. The script that writes an asset also
    checks the lease. On a Redis Cluster, the lease is checked before the write. If a
    process dies, its lease expires.

    Args:
        redis: A URL, a client of redis-py or a ``ProjectAgent``. If it is a
            ``ProjectAgent``, :meth:`run_forever` logs through the agent. With
            ``None``, the URL in ``BLS_REDIS_URL`` is used.
        source: Source of the manifests.
        wait: Longest wait in seconds for the end of another synchronisation.
        on_progress: Function that is called in the event loop after each step of the
            synchronisation. The function must not block.
        lease: Seconds after which the lease of a dead process ends.
        timeout: Deadline of one request to Redis in seconds.

    Raises:
        ConfigurationError: An argument is invalid.
    """

    def __init__(
        self,
        redis: RedisOrAgent | None,
        source: Source,
        *,
        wait: float = 0.0,
        on_progress: Callable[[SyncStep], None] | None = None,
        lease: float = 15.0,
        timeout: float = 5.0,
    ) -> None:
        self.library: AssetLibrary = AssetLibrary(redis, timeout=timeout)
        if not hasattr(source, "head"):
            remedy = "For a folder, pass DirectorySource(path)."
            raise ConfigurationError("source", source, "a source of manifests", remedy)
        self.source = source
        self._wait = check_wait("wait", wait)
        self._lease_ttl = check_seconds("lease", lease)
        self._on_progress = on_progress
        is_agent = hasattr(redis, "endpoint")
        self._log: Any = getattr(redis, "log", logger) if is_agent else logger
        self._logged: object = None
        self._retry_after = 0.0

    async def __aenter__(self) -> Self:
        """Return this object. The first request opens the connections."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connections."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections to Redis and to the source."""
        await self.library.aclose()
        await self.source.aclose()

    async def run(self, *, force: bool = False, dry_run: bool = False) -> SyncReport:
        """Synchronise once.

        Args:
            force: Read all files even if nothing has changed, and allow any number of
                deletions. Assets that are already equal are not written.
            dry_run: Write nothing, take no lease, and report the plan.

        Returns:
            The report. The status is ``failed``, with the reasons, if the source fails,
            a file is broken, or too many assets would be deleted. If the only failures
            are broken files, all other assets are up to date.

        Raises:
            LeaseHeldError: Another synchronisation still runs after ``wait`` seconds.
            WrongTypeError: The state or the lease cannot be written, because its key
                holds another type.
            RedisUnavailableError: Redis cannot answer. Assets that were written remain,
                and the next synchronisation writes the others.
        """
        self._retry_after = 0.0
        if dry_run:
            return await self._report(None, force=force)
        report = SyncReport(status="failed", reason=LOST, source=self.source.name)
        async with self._hold_lease() as lease:
            report = await self._report(lease, force=force)
            await self._record(lease, report)
        return report

    async def run_forever(self, interval: float = 300.0) -> None:
        """Synchronise again and again until the task is cancelled.

        A run that finds a change logs one record. A failed run logs a warning, unless
        the run before failed in the same way. A failure does not end this method.

        Args:
            interval: Seconds between two runs. The pause is longer, up to an hour, if
                the source asks for a longer wait, for example because of a rate limit.

        Raises:
            ConfigurationError: ``interval`` is not a valid number of seconds.
        """
        check_seconds("interval", interval)
        while True:
            try:
                self._log_report(await self.run())
            except LeaseHeldError:
                pass  # another process synchronises
            except Exception as error:  # noqa: BLE001 - logged, and tried again
                reason = redact(f"{type(error).__name__}: {error}")
                self._log_report(SyncReport(status="failed", reason=reason))
            await anyio.sleep(max(interval, min(self._retry_after, LONGEST_WAIT)))

    def _log_report(self, report: SyncReport) -> None:
        key = (report.status, report.reason, report.broken)
        is_new, self._logged = key != self._logged, key
        if report.status == "failed" and is_new:
            faults = "".join(f"\n{fault}" for fault in report.broken[:10])
            self._log.warning(
                "assets are not up to date with %s: %s%s",
                self.source.name, report.reason, faults,
            )  # fmt: skip
        elif report.status == "complete":
            self._log.info(
                "assets are up to date with %s at %s: %d created, %d updated, %d deleted",
                self.source.name, report.commit[:12],
                len(report.created), len(report.updated), len(report.deleted),
            )  # fmt: skip

    @asynccontextmanager
    async def _hold_lease(self) -> AsyncGenerator[Lease]:
        """Hold the lease during the block. A lost lease cancels the block."""
        async with self.library.pool.to(STATE) as connection:
            lease = Lease(connection, STATE, self._lease_ttl)
            try:
                await self._take(lease, connection)
                with anyio.CancelScope() as scope:
                    renewal = start_background(lease.keep, "bls-agent-asset-sync")
                    renewal.add_done_callback(lambda _: scope.cancel())
                    try:
                        yield lease
                    finally:
                        renewal.cancel()
            finally:  # also if the reply that the lease is ours did not arrive
                with anyio.CancelScope(shield=True), suppress(RedisUnavailableError):
                    await lease.give_back()

    async def _take(self, lease: Lease, connection: Connection) -> None:
        """Wait until the lease is ours, at most ``wait`` seconds."""
        pause, end = Backoff(cap=1.0), anyio.current_time() + self._wait
        while not await _acquire(lease):
            left = end - anyio.current_time()
            if left <= 0:
                remaining = await connection.read("PTTL", lease.owner_key)
                remedy = "Wait for the other synchronisation, or stop it."
                raise LeaseHeldError(STATE, max(0, remaining) / 1000, remedy)
            await anyio.sleep(min(pause.failed(), left))

    async def _report(self, lease: Lease | None, *, force: bool) -> SyncReport:
        """Synchronise and return the report.

        A failure of the source or a key of the wrong type is returned as a report. Any
        other error is recorded in Redis and raised again.
        """
        began = anyio.current_time()
        try:
            report = await self._synchronise(lease, force=force)
        except (SourceError, WrongTypeError) as error:
            self._retry_after = getattr(error, "retry_after", None) or 0.0
            report = SyncReport(status="failed", reason=str(error))
        except BaseException as error:
            is_failure = isinstance(error, Exception)
            reason = redact(str(error)) if is_failure else INTERRUPTED
            with anyio.CancelScope(shield=True), suppress(RedisUnavailableError):
                await self._record(lease, SyncReport(status="failed", reason=reason))
            raise
        seconds = anyio.current_time() - began
        return replace(report, source=self.source.name, seconds=seconds)

    async def _synchronise(self, lease: Lease | None, *, force: bool) -> SyncReport:
        """Synchronise, or only make the plan if ``lease`` is ``None``.

        There are four cases:

        1. The source has not changed since the last complete run, and ``force`` is
           false: the assets are not read.
        2. ``lease`` is ``None``: the plan is reported, and nothing is written.
        3. The plan deletes too many assets: nothing is written, and the run has failed.
        4. Otherwise the plan is executed.
        """
        state, base_path = await self.library.sync_state(), self.source.base_path
        head = await self.source.head()
        if not force and _is_unchanged(state, head, base_path):
            return SyncReport(status="unchanged", commit=head.commit)
        if lease is not None:
            await self._send([("HSET", STATE, "sync_status", "syncing")])
        plan = await self._plan(head, force=force)
        report = replace(plan.report, content=head.content, base_path=base_path)
        if lease is None:
            return report
        if plan.refusal:
            kept = tuple(sorted((*report.kept, *report.deleted)))
            return replace(
                report, status="failed", created=(), updated=(), deleted=(), kept=kept
            )
        return await self._execute(plan.writes, report, lease)

    async def _plan(self, head: Head, *, force: bool) -> SyncPlan:
        self._step(SyncStep("read"))
        tree, base_path = await self.source.tree(head), self.source.base_path
        files, faults = await anyio.to_thread.run_sync(choose_files, tree, base_path)
        known = await self._known()
        wanted = files_to_read(files, known, force=force)
        manifests: dict[str, AssetManifest] = {}
        missing = {file.path for file in wanted}
        size = 0
        async with aclosing(self.source.fetch(head, wanted)) as contents:
            async for file, content in contents:
                missing.discard(file.path)
                wait = getattr(content, "retry_after", None) or 0.0
                self._retry_after = max(self._retry_after, wait)
                try:
                    manifests[file.path] = await read_manifest(file, content)
                except ManifestError as error:
                    faults += error.faults
                size += file.size
                done = len(wanted) - len(missing)
                self._step(SyncStep("download", done, len(wanted), size))
        faults += (
            ManifestFault(one, "the source left it out") for one in sorted(missing)
        )
        plan = partial(make_plan, head.commit, files, known, manifests, faults)
        # In a thread, because encoding thousands of manifests would block the loop.
        return await anyio.to_thread.run_sync(partial(plan, force=force))

    async def _known(self) -> list[KnownAsset]:
        """Read all assets of the library: first their ids, then their hashes."""
        asked = [INDEX, *map(category_key, CATEGORIES)]
        requests: list[Request] = [("HGETALL", INDEX)]
        requests += (("SMEMBERS", key) for key in asked[1:])
        replies = await self.library.pool.read_many(requests)
        for key, reply in zip(asked, replies, strict=True):
            checked_reply(reply, key)
        index = pair(replies[0])
        sets: dict[str, set[bytes]] = {
            name: set(ids) for name, ids in zip(CATEGORIES, replies[1:], strict=True)
        }
        # Ids that are no UTF-8 are left out, because readers ignore these ids, too.
        ids = sorted(filter(_is_text, {*index, *chain.from_iterable(sets.values())}))
        reads = [("HMGET", metadata_key(one.decode()), *COMPARED) for one in ids]
        hashes = await self.library.pool.read_many(reads)
        found: list[KnownAsset] = []
        for one, fields in zip(ids, hashes, strict=True):
            listed = [name for name in CATEGORIES if one in sets[name]]
            found.append(_compare(one, fields, index.get(one), listed))
        return found

    async def _execute(
        self, saved: Sequence[AssetWrite], report: SyncReport, lease: Lease
    ) -> SyncReport:
        """Write assets, then delete assets. Continue if Redis refuses some of them.

        A lost lease ends the run at once, because another synchronisation may write.
        """
        writes = [*saved, *map(AssetWrite, report.deleted)]
        written: dict[WriteOutcome, list[str]] = {one: [] for one in WriteOutcome}
        faults: list[ManifestFault] = []
        lost = SyncReport(status="failed", commit=report.commit, reason=LOST)
        for part in portions(writes):
            if not lease.valid:
                return lost
            replies = await self.library.write(part, token=lease.token)
            for write, outcome in zip(part, replies, strict=True):
                if isinstance(outcome, RedisUnavailableError):
                    faults.append(_refused(write, outcome))
                elif outcome is WriteOutcome.LOST:
                    return lost
                else:
                    written[outcome].append(write.id)
            done = sum(map(len, written.values()))
            self._step(SyncStep("write", done, len(writes)))
        broken = (*report.broken, *faults)
        return replace(
            report,
            status="failed" if broken else "complete",
            created=tuple(written[WriteOutcome.CREATED]),
            updated=tuple(written[WriteOutcome.UPDATED]),
            deleted=tuple(written[WriteOutcome.DELETED]),
            broken=broken,
            reason=sum_up(broken),
        )

    async def _record(self, lease: Lease | None, report: SyncReport) -> None:
        """Write report and state. Write the commit only if the run is complete."""
        if lease is None or not lease.valid or report.status == "unchanged":
            return
        fields: list[str | int] = ["sync_status", "failed"]
        if report.status == "complete":
            async with self.library.pool.to(STATE) as connection:
                now = (await connection.call("TIME"))[0]
            fields = [
                "last_sync_time", read_text(now), "last_commit_sha", report.commit,
                "synced_count", report.total, "sync_status", "idle",
            ]  # fmt: skip
        shown = asdict(report)
        for name in ("created", "updated", "deleted", "kept"):
            shown[name] = shown[name][:KEPT]
        shown["broken"] = shown["broken"][:SHOWN_FAULTS]
        requests = [("SET", REPORT, encode(shown)), ("HSET", STATE, *fields)]
        (before,) = await self.library.pool.read_many([("GET", REPORT)])
        # SET would replace a key of another type, which may belong to somebody else.
        is_foreign = getattr(before, "kind", "") == "wrong_type"
        await self._send(requests[1:] if is_foreign else requests)

    async def _send(self, requests: Sequence[Request]) -> None:
        for reply in await self.library.pool.call_many(requests):
            checked_reply(reply, STATE)

    def _step(self, step: SyncStep) -> None:
        if self._on_progress is not None:
            self._on_progress(step)


async def _acquire(lease: Lease) -> bool:
    """Try to take the lease. If the server has no scripts, run without the lease."""
    try:
        return await lease.acquire()
    except RedisRefusedError as error:
        if error.kind != "unknown_command":
            return bool(checked_reply(error, lease.owner_key))  # raises an error
        lease.record_renewed(float("inf"))
        return True


def _is_unchanged(state: SyncState, head: Head, base_path: str) -> bool:
    # The synchronisation of another program writes no report.
    report = state.report or SyncReport(status="complete")
    return (
        state.sync_status == "idle"
        and state.last_commit_sha == head.commit
        and report.content == head.content
        and report.base_path == base_path
    )


async def read_manifest(
    file: SourceFile, content: bytes | SourceError
) -> AssetManifest:
    """Check the SHA of one file, and read its manifest in a thread."""
    if isinstance(content, SourceError):
        raise ManifestError([ManifestFault(file.path, content.reason)])
    if blob_sha(content, like=file.sha) != file.sha:
        reason = "what was downloaded is not what the commit says (by its SHA)"
        raise ManifestError([ManifestFault(file.path, reason, "Synchronise again.")])
    return await anyio.to_thread.run_sync(parse_manifest, content, file.path)


def _refused(write: AssetWrite, error: RedisUnavailableError) -> ManifestFault:
    path = read_text(write.fields.get("github_path", b"")) or metadata_key(write.id)
    return ManifestFault(
        path, f"Redis refused it ({error.kind}): {error.reason}", id=write.id
    )


def _is_text(asset_id: bytes) -> bool:
    return asset_id.decode("utf-8", "ignore").encode() == asset_id


def _compare(
    asset_id: bytes, fields: Reply, summary: bytes | None, listed: Sequence[str]
) -> KnownAsset:
    """Return what a plan needs to know of an asset, and whether its keys agree."""
    if isinstance(fields, RedisUnavailableError):
        if fields.kind != "wrong_type":
            raise fields
        return KnownAsset(asset_id.decode(), is_sound=False)
    known = {
        name.encode(): value
        for name, value in zip(COMPARED, fields, strict=True)
        if value is not None
    }
    values, faults = read_fields(known)
    expected = AssetSummary.of_fields(fields[: len(SUMMARY)])
    try:
        found = AssetSummary.read(asset_id, summary or b"")
    except DecodeError:
        found = None
    is_whole = expected.category != "tool" or all(name in values for name in OF_TOOLS)
    agrees = found == expected and listed == [expected.category]
    return KnownAsset(
        asset_id.decode(),
        values.get("github_path", ""),
        values.get("github_sha", ""),
        is_sound=agrees and is_whole and not faults,
    )
