"""Reads, searches, watches and writes the asset library in Redis.

Reading needs no extra. One script writes an asset in one step: the metadata, the
category sets, the summary in the index and the record of the change. On a Redis Cluster
these keys lie in different slots, and some servers have no scripts. There each key is
written alone. The metadata is then written first and deleted last, so that a reader
that finds an id in the index also finds the asset. If a writer dies in between, the
next synchronisation repairs the asset.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import anyio

from bls_agent.assets.records import (
    CATEGORIES,
    KEPT,
    OPTIONAL,
    SUMMARY,
    Asset,
    AssetSummary,
    AssetWrite,
    SyncReport,
    SyncState,
    WriteOutcome,
    is_time,
    pair,
    read_text,
    read_whole,
)
from bls_agent.connection.access import RedisOrAgent, Store
from bls_agent.connection.endpoint import Argument, Reply, Request
from bls_agent.connection.pool import ConnectionPool
from bls_agent.connection.reconnect import ThrottledLog
from bls_agent.connection.scripts import WRITE_ASSET
from bls_agent.core.backoff import Backoff
from bls_agent.core.checks import check_count, check_text
from bls_agent.core.errors import (
    ConfigurationError,
    DecodeError,
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.core.keys import (
    ASSET_REPORT,
    KEYS,
    OWNER,
    checked_reply,
    place_beside,
)

if TYPE_CHECKING:
    from bls_agent.assets.manifest import AssetManifest

# These aliases exist because AssetLibrary has a method that is called ``list``.
_Summaries: TypeAlias = list[AssetSummary]
_Result: TypeAlias = WriteOutcome | RedisUnavailableError
_Results: TypeAlias = list[_Result]
_Ids: TypeAlias = list[str]

INDEX: Final = KEYS["asset_index"].build()
STATE: Final = KEYS["asset_sync_state"].build()
CHANGED: Final = KEYS["asset_sync_changed"].build()
REPORT: Final = ASSET_REPORT.locate(place=place_beside(STATE))
SYNC_OWNER: Final = OWNER.locate(place=place_beside(STATE))

CHANGES: Final = (WriteOutcome.CREATED, WriteOutcome.UPDATED, WriteOutcome.DELETED)
PORTION: Final = 200  # assets in one write
PORTION_BYTES: Final = 2**19
LIST_INTERVAL: Final = 2.0  # seconds between two reads of the list of changes


def metadata_key(asset_id: str) -> str:
    return KEYS["asset_metadata"].locate(id=asset_id)


def category_key(category: str) -> str:
    return KEYS["asset_category"].locate(category=category)


class AssetLibrary(Store):
    """The tools, prompts and skills that agents may use.

    The library works with and without ``async with``, in any event loop. An entry that
    cannot be read is left out and logged, at most once a minute. Other entries are
    still returned. Every method raises RedisUnavailableError if Redis cannot answer.

    Args:
        redis: A URL, a client of redis-py or a ``ProjectAgent``. Default:
            ``BLS_REDIS_URL``, read at the first request.
        timeout: Deadline of one request in seconds.

    Raises:
        ConfigurationError: The URL, the client or the timeout is invalid.
    """

    client_name: ClassVar[str] = "bls-assets"

    def __init__(
        self, redis: RedisOrAgent | None = None, *, timeout: float = 5.0
    ) -> None:
        super().__init__(redis, timeout=timeout)
        # Becomes False when the server does not support scripts.
        self._has_scripts = True
        self._throttled_log = ThrottledLog()

    @property
    def pool(self) -> ConnectionPool:
        """The connections of the running event loop. The first request opens them."""
        return self._access.pool

    async def get(self, asset_id: str) -> Asset | None:
        """Return one asset, or ``None`` if the asset is missing or cannot be read.

        Raises:
            ConfigurationError: The id is no text, or it is empty.
        """
        if not check_text("id", asset_id):
            raise ConfigurationError("id", asset_id, "it is not empty")
        key = metadata_key(asset_id)
        try:
            pairs = pair(await self._read(key, "HGETALL"))
            return Asset.read(pairs) if pairs else None
        except (DecodeError, WrongTypeError) as error:
            self._throttled_log.warn(f"the asset {asset_id!r} is left out", error)
            return None

    async def _read(self, key: str, name: str, *rest: Argument) -> Reply:
        try:
            return await self.pool.read(key, name, *rest)
        except RedisUnavailableError as error:
            return checked_reply(error, key)

    async def list(self, category: str | None = None) -> _Summaries:
        """Return the summaries of all assets, or of one category, sorted by id.

        All assets are read with one request from ``asset:index``. For a category, the
        category's set is read as well, because other programs may write an asset
        without an entry in the index.

        Raises:
            ConfigurationError: The category is invalid.
            WrongTypeError: ``asset:index`` is no hash, or the category's key is no set.
        """
        if category is not None and category not in CATEGORIES:
            rule = f"one of {', '.join(CATEGORIES)}"
            raise ConfigurationError("category", category, rule)
        found, faults = await self.read_index()
        for asset_id, fault in faults.items():
            self._throttled_log.warn(f"{asset_id!r} in {INDEX} is left out", fault)
        if category is None:
            return found
        found += await self._read_unindexed(category, {one.id for one in found})
        found = [one for one in found if one.category == category]
        return sorted(found, key=lambda one: one.id)

    async def _read_unindexed(self, category: str, indexed: set[str]) -> _Summaries:
        """Read the assets of a category's set that have no entry in the index."""
        members = await self._read(category_key(category), "SMEMBERS")
        ids = [one for one in map(read_text, members) if one not in indexed]
        reads = [("HMGET", metadata_key(one), *SUMMARY) for one in ids]
        hashes = await self.pool.read_many(reads) if reads else []
        found: _Summaries = []
        for asset_id, reply in zip(ids, hashes, strict=True):
            try:
                checked = checked_reply(reply, metadata_key(asset_id))
            except WrongTypeError as error:
                self._throttled_log.warn(f"the asset {asset_id!r} is left out", error)
            else:
                found.append(AssetSummary.of_fields(checked))
        return [one for one in found if all(one[:4]) and one.id not in indexed]

    async def read_index(self) -> tuple[_Summaries, dict[str, DecodeError]]:
        """Return the summaries in the index, and the error of each unreadable entry.

        Summaries are sorted by id. The keys of the errors are ids. Sends one request.
        Raises the same errors as :meth:`list`.
        """
        pairs = pair(await self._read(INDEX, "HGETALL"))
        found: list[AssetSummary] = []
        faults: dict[str, DecodeError] = {}
        for asset_id, payload in pairs.items():
            try:
                found.append(AssetSummary.read(asset_id, payload))
            except DecodeError as error:
                faults[read_text(asset_id)] = error
        found.sort(key=lambda summary: summary.id)
        return found, dict(sorted(faults.items()))

    async def search(self, text: str) -> _Summaries:
        """Return the summaries that contain every word of a text.

        The search ignores case. A word is found anywhere in the id, name, category,
        version or description of a summary. Raises the same errors as
        :meth:`list`.

        Returns:
            First the summaries with all words in id or name, then the others. Both
            groups are sorted by id.
        """
        return search_summaries(await self.list(), text)

    async def save(self, manifest: AssetManifest, *, path: str, sha: str) -> str:
        """Write one asset.

        The next synchronisation deletes the asset if no manifest in the source
        describes this asset. After an error it is safe to call this method again.

        Args:
            manifest: The manifest of the asset.
            path: Path of the manifest, such as ``tools/search/google.yaml``.
            sha: SHA of the manifest.

        Returns:
            ``created``, ``updated``, or ``same`` if nothing had to be written.

        Raises:
            ConfigurationError: The path is invalid, or the SHA is empty.
        """
        from bls_agent.assets.manifest import path_fault  # noqa: PLC0415 - needs the extra

        if rule := path_fault(path):
            raise ConfigurationError("path", path, rule)
        if not sha:
            raise ConfigurationError("sha", sha, "the SHA of the manifest's file")
        return await self._write_one(AssetWrite.of(manifest, path=path, sha=sha))

    async def delete(self, asset_id: str) -> bool:
        """Delete all keys and entries of one asset, even if some are missing already.

        After an error it is safe to call this method again.

        Returns:
            Whether anything was deleted.

        Raises:
            ConfigurationError: The id is invalid.
        """
        KEYS["asset_metadata"].build(id=asset_id)
        return await self._write_one(AssetWrite(asset_id)) is not WriteOutcome.SAME

    async def _write_one(self, write: AssetWrite) -> WriteOutcome:
        (outcome,) = await self.write([write])
        if isinstance(outcome, RedisUnavailableError):
            raise outcome
        return outcome

    async def write(self, writes: Sequence[AssetWrite], *, token: str = "") -> _Results:
        """Write and delete many assets, for a synchronisation.

        There are two cases for how an asset is written:

        1. One server with scripts: one script writes all keys of the asset in one step,
           and checks in this step that ``token`` still holds the lease.
        2. A cluster, or a server without scripts: each key is written alone, and the
           token is not checked.

        ``writes`` is one list that :func:`portions` yields. Returns the outcome of each
        write, or the error if Redis refused the write. Raises RedisUnavailableError if
        the connection failed. The caller may then write the same list again.
        """
        writes = await self._with_stored(writes)
        if self._has_scripts and not self.pool.is_cluster:
            runs = [(_keys_of(write), write.arguments(token)) for write in writes]
            replies = await WRITE_ASSET.run_many(self.pool, runs)
            if not any(map(_is_unknown, replies)):
                return [
                    one
                    if isinstance(one, RedisUnavailableError)
                    else WriteOutcome(read_text(one))
                    for one in replies
                ]
            self._has_scripts = False
        return [await self._write_by_keys(write) for write in writes]

    async def _with_stored(self, writes: Sequence[AssetWrite]) -> Sequence[AssetWrite]:
        """Return the writes, with what they need from the hashes of their assets."""
        reads = [
            ("HMGET", metadata_key(write.id), "category", "created_at")
            for write in writes
        ]
        replies = await self.pool.read_many(reads)
        return list(map(_add_stored, writes, replies))

    async def _write_by_keys(self, write: AssetWrite) -> _Result:
        """Write one asset key by key. Each asset in the index always has metadata.

        The order depends on the kind of the write:

        1. A deletion: the entries in the index and the sets, then the metadata.
        2. Another write: the metadata, then the entries.
        """
        try:
            if write.is_deletion:
                await self._send(_entries_of(write))
                outcome = await self._delete_metadata(write)
            else:
                outcome = await self._save_metadata(write)
                await self._send(_entries_of(write))
            if outcome in CHANGES:
                await self._send([
                    ("RPUSH", CHANGED, write.id),
                    ("LTRIM", CHANGED, -KEPT, -1),
                ])  # fmt: skip
        except RedisRefusedError as error:
            return error
        return outcome

    async def _delete_metadata(self, write: AssetWrite) -> WriteOutcome:
        key = metadata_key(write.id)
        async with self.pool.to(key) as connection:
            existed = await connection.call("DEL", key)
        return WriteOutcome.DELETED if existed else WriteOutcome.SAME

    async def _save_metadata(self, write: AssetWrite) -> WriteOutcome:
        """Write the hash of an asset.

        One request writes all fields. The same request empties fields that are to be
        removed, because for readers an empty field is absent.
        """
        key = metadata_key(write.id)
        async with self.pool.to(key) as connection:
            before = pair(await connection.read("HGETALL", key))
            fields = {name.encode(): value for name, value in write.fields.items()}
            removed = [
                name for one in OPTIONAL
                if (name := one.encode()) in before and name not in fields
            ]  # fmt: skip
            is_dated = is_time(before.get(b"created_at", b""))
            if is_dated and not removed and fields.items() <= before.items():
                return WriteOutcome.SAME
            now = (await connection.call("TIME"))[0]
            fields |= {b"updated_at": now, **dict.fromkeys(removed, b"")}
            fields |= {} if is_dated else {b"created_at": now}
            words = chain.from_iterable(fields.items())
            await connection.call("HSET", key, *words)
            if removed:
                await connection.call("HDEL", key, *removed)
        return WriteOutcome.UPDATED if before else WriteOutcome.CREATED

    async def _send(self, requests: Sequence[Request]) -> None:
        """Send requests in order. Raise the first error among the replies."""
        for reply in await self.pool.call_many(requests):
            if isinstance(reply, RedisUnavailableError):
                raise reply

    async def sync_state(self) -> SyncState:
        """Return the state of the synchronisation, with the last report.

        Raises:
            WrongTypeError: ``asset:sync:state`` is no hash.
        """
        requests = [("HGETALL", STATE), ("EXISTS", SYNC_OWNER), ("GET", REPORT)]
        state, owned, report = await self.pool.read_many(requests)
        pairs = pair(checked_reply(state, STATE))
        status = read_text(pairs.get(b"sync_status", b""))
        return SyncState(
            last_sync_time=read_whole(pairs.get(b"last_sync_time")),
            last_commit_sha=read_text(pairs.get(b"last_commit_sha", b"")),
            synced_count=read_whole(pairs.get(b"synced_count")),
            sync_status=status,
            is_interrupted=status == "syncing" and owned == 0,
            report=self._report(checked_reply(report, REPORT)),
        )

    def _report(self, payload: bytes | None) -> SyncReport | None:
        try:
            return SyncReport.read(payload) if payload else None
        except DecodeError as error:
            self._throttled_log.warn(f"{REPORT} is left out", error)
            return None

    async def changes(self, n: int = 10) -> _Ids:
        """Return the ids of the last ``n`` changes, newest last. An id may repeat.

        Raises:
            ConfigurationError: ``n`` is not between 1 and 1,000.
            WrongTypeError: ``asset:sync:changed`` is no list.
        """
        check_count("n", n, most=KEPT)
        return [read_text(one) for one in await self._read(CHANGED, "LRANGE", -n, -1)]

    async def watch(self) -> AsyncGenerator[str]:
        """Yield the id of each asset that is created, updated or deleted.

        The first id belongs to the first change after the iteration has begun. After an
        outage, the iteration resumes at the change where it stopped. Each change is
        yielded at least once, within about two seconds. If more than 1,000 changes wait
        for a reader, the oldest are lost. If the 1,000 entries of the list of changes
        repeat the same ids in the same order, for example because each synchronisation
        changes the same assets, later changes of these assets may be missed.

        Raises:
            RedisRefusedError: Redis refuses the request. After other failures of Redis,
                the iteration waits until Redis answers again.
        """
        backoff = Backoff()
        known: Sequence[bytes] | None = None
        while True:
            try:
                listed = await self._read(CHANGED, "LRANGE", -KEPT, -1)
            except RedisRefusedError:
                raise
            except RedisUnavailableError as error:
                self._throttled_log.warn("no changes of assets are seen", error)
                await anyio.sleep(backoff.failed())
                continue
            backoff.succeeded()
            added = find_added(listed if known is None else known, listed)
            known = listed
            for one in added:
                yield read_text(one)
            await anyio.sleep(LIST_INTERVAL)


def find_added(before: Sequence[bytes], now: Sequence[bytes]) -> Sequence[bytes]:
    """Return the end of a list that was added since the list was ``before``.

    The list is trimmed at its front while it grows. So its old part is the longest
    beginning of ``now`` that is an end of ``before``.
    """
    kept = min(len(before), len(now))
    while kept and before[len(before) - kept :] != now[:kept]:
        kept -= 1
    return now[kept:]


def portions(writes: Sequence[AssetWrite]) -> Iterator[list[AssetWrite]]:
    """Divide writes into lists, each of which Redis can execute quickly."""
    part: list[AssetWrite] = []
    size = 0
    for write in writes:
        if part and (len(part) == PORTION or size + write.size > PORTION_BYTES):
            yield part
            part, size = [], 0
        part.append(write)
        size += write.size
    if part:
        yield part


def search_summaries(found: _Summaries, text: str) -> _Summaries:
    """Return the summaries that :meth:`AssetLibrary.search` returns."""
    words = text.casefold().split()
    titled = {one.id for one in found if _holds(f"{one.id}\n{one.name}", words)}
    wanted = [one for one in found if _holds("\n".join(one), words)]
    return sorted(wanted, key=lambda one: one.id not in titled)


def _holds(text: str, words: Sequence[str]) -> bool:
    folded = text.casefold()
    return all(word in folded for word in words)


def _add_stored(write: AssetWrite, reply: Reply) -> AssetWrite:
    """Add the category to a deletion, and a wrong creation time to another write."""
    if isinstance(reply, RedisUnavailableError):
        return write  # the write has the same error
    category, created_at = (one or b"" for one in reply)
    if write.is_deletion:
        return write._replace(category=read_text(category))
    return write if is_time(created_at) else write._replace(bad_time=created_at)


def _keys_of(write: AssetWrite) -> list[str]:
    keys = [metadata_key(write.id), INDEX, CHANGED, SYNC_OWNER]
    return [*keys, *map(category_key, _categories_of(write))]


def _entries_of(write: AssetWrite) -> list[Request]:
    """Return the requests that change the index and the sets of the categories."""
    requests: list[Request] = [
        ("HDEL", INDEX, write.id)
        if write.is_deletion
        else ("HSET", INDEX, write.id, write.summary)
    ]
    for name in _categories_of(write):
        joins = name == write.category and not write.is_deletion
        requests.append(("SADD" if joins else "SREM", category_key(name), write.id))
    return requests


def _categories_of(write: AssetWrite) -> list[str]:
    """Return the categories whose sets a write changes. The asset's own is first."""
    return list(dict.fromkeys(filter(None, (write.category, *CATEGORIES))))


def _is_unknown(reply: Reply) -> bool:
    """Return whether a reply means that the server does not support the command."""
    return isinstance(reply, RedisUnavailableError) and reply.kind == "unknown_command"
