"""A crawl queue for Scrapy that several processes share (extra ``scrapy``).

One line in a project's settings chooses the scheduler and the duplicate filter::

    ADDONS = {"bls_agent.integrations.scrapy.CrawlAddon": 500}

The queue runs in a thread with an event loop of its own. So requests to Redis do not
block any kind of reactor, and leases are renewed even during a slow callback.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, cast

from bls_agent.connection.reconnect import ThrottledLog
from bls_agent.core.backoff import Backoff
from bls_agent.core.checks import to_number
from bls_agent.core.errors import (
    BlsError,
    ConfigurationError,
    MissingExtraError,
    RedisRefusedError,
    RedisUnavailableError,
)
from bls_agent.crawl.fingerprint import CrawlRequest
from bls_agent.crawl.overview import QueueStats, cleanup
from bls_agent.crawl.queue import RequestQueue, TakenRequest
from bls_agent.crawl.seen import DedupPipeline
from bls_agent.runtime.loop_thread import LoopThread

try:
    from scrapy import Request, Spider, signals
    from scrapy.core.scheduler import BaseScheduler
    from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
    from scrapy.exceptions import DropItem
    from scrapy.utils.misc import build_from_crawler, load_object
    from scrapy.utils.request import request_from_dict
    from twisted.internet.defer import Deferred
except ModuleNotFoundError:
    raise MissingExtraError("scrapy", "the scheduler for Scrapy") from None

if TYPE_CHECKING:
    from concurrent.futures import Future

    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

__all__ = [
    "CrawlAddon",
    "CrawlDedupPipeline",
    "CrawlDupeFilter",
    "CrawlScheduler",
    "read_request",
    "write_request",
]

# A field of ``meta``. In Redis, the field has the attributes of Scrapy's request that a
# CrawlRequest cannot have. In taken requests, retries and redirects, it is ``True``.
MARK: Final = "crawl_queue"
AHEAD: Final = 8  # requests that are taken before Scrapy asks for them
LOOK_EVERY: Final = 0.5  # seconds between two checks whether requests are left
CLOSE_TIME: Final = 10.0  # seconds at the end to finish requests to Redis

_log = logging.getLogger(__name__)


class CrawlAddon:
    """Makes Scrapy use :class:`CrawlScheduler` and :class:`CrawlDupeFilter`.

    The project's own ``SCHEDULER`` and ``DUPEFILTER_CLASS`` have precedence.
    """

    def update_settings(self, settings: BaseSettings) -> None:
        """Set scheduler and duplicate filter. Scrapy calls this method."""
        settings.set("SCHEDULER", f"{__name__}.CrawlScheduler", "addon")
        settings.set("DUPEFILTER_CLASS", f"{__name__}.CrawlDupeFilter", "addon")


def _place_of(crawler: Crawler) -> tuple[str | None, str, str]:
    """Return the URL of Redis, the project's name and the spider's name."""
    settings = crawler.settings
    project = settings.get("PROJECT_NAME") or settings.get("BOT_NAME")
    if project == "scrapybot":  # Scrapy's default for BOT_NAME
        rule, remedy = "the project has a name", "Set PROJECT_NAME or BOT_NAME."
        raise ConfigurationError("PROJECT_NAME", None, rule, remedy)
    name = settings.get("SPIDER_NAME")  # "" for the project without a spider
    if name is None:
        name = cast("Spider", crawler.spider).name
    return settings.get("BLS_REDIS_URL") or settings.get("REDIS_URL"), project, name


class CrawlDedupPipeline(DedupPipeline):
    """Drops items that any process of the spider has seen before.

    The settings are those of :class:`CrawlScheduler`, and ``REDIS_TTL``. The cleanup of
    the scheduler also removes the fingerprints of items.
    """

    dropped: ClassVar[type[Exception]] = DropItem

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the pipeline. Scrapy calls this method."""
        url, project, name = _place_of(crawler)
        found = {"REDIS_URL": url, "PROJECT_NAME": project, "SPIDER_NAME": name}
        ttl = crawler.settings.get("REDIS_TTL")
        return cls.from_settings({**found, "REDIS_TTL": ttl})


class CrawlDupeFilter(RFPDupeFilter):
    """Leaves the search for duplicates to :class:`CrawlScheduler` and Redis.

    Redis tests and queues a request in one step. The filter itself is used only for
    requests that stay in the memory of this process. Duplicates are logged as by
    Scrapy's own filter (``DUPEFILTER_DEBUG``).

    Raises:
        ConfigurationError: ``SCHEDULER`` is not :class:`CrawlScheduler`. Any other
            scheduler would write the fingerprint before the request. After a crash
            between the two writes, the request would never be fetched.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the filter. The scheduler calls this method."""
        scheduler = load_object(crawler.settings["SCHEDULER"])
        if CrawlScheduler not in scheduler.__mro__:  # issubclass() checks methods only
            name, rule = "SCHEDULER", "CrawlDupeFilter needs the scheduler beside it"
            remedy = f"Set it to '{CrawlScheduler.__module__}.CrawlScheduler'."
            raise ConfigurationError(name, crawler.settings[name], rule, remedy)
        debug = crawler.settings.getbool("DUPEFILTER_DEBUG")
        return cls(None, debug, fingerprinter=crawler.request_fingerprinter)


def write_request(request: Request, spider: Spider | None = None) -> CrawlRequest:
    """Convert a request of Scrapy to a request of a crawl queue.

    Args:
        request: A request whose callback and errback are methods of the spider. meta,
            cb_kwargs, cookies and flags contain only values that can be written as JSON
            (a tuple becomes a list).
        spider: The spider that has the methods.

    Raises:
        ValueError: A value cannot be written as JSON. The message names the value.
    """
    values = request.to_dict(spider=spider)
    headers: dict[str, str] = {}
    several: dict[str, list[str]] = {}
    for name, found in values.pop("headers").items():
        texts = [value.decode("latin-1") for value in found]
        if len(texts) == 1:
            headers[name.decode("latin-1")] = texts[0]
        elif texts:
            several[name.decode("latin-1")] = texts
    url, method, body = (values.pop(name) for name in ("url", "method", "body"))
    meta, callback = values.pop("meta"), values.pop("callback")
    rest = {
        name: value
        for name, value in values.items()
        if name not in Request.attributes
        or (value and (name, value) != ("encoding", "utf-8"))
    }
    if several:
        rest["headers"] = several
    whole = {**meta, MARK: rest}
    try:
        _refuse_odd("meta", whole)
    except RecursionError:
        rule = "it contains itself, or has too many levels"
        raise ConfigurationError("meta", meta, rule) from None
    return CrawlRequest(url, method, headers or None, body, whole, callback)


def _refuse_odd(name: str, value: object) -> None:
    """Refuse a value that JSON cannot hold or would change, except for a tuple."""
    if isinstance(value, dict):
        for key, each in cast("dict[object, object]", value).items():
            if not isinstance(key, str):
                rule = "the keys of a JSON object are texts"
                raise ConfigurationError(name, key, rule, "Use a text.")
            _refuse_odd(f"{name}[{key!r}]", each)
    elif isinstance(value, list | tuple):
        for each in cast("list[object]", value):
            _refuse_odd(name, each)
    elif value is not None and not isinstance(value, str | int | float | bool):
        rule = f"JSON has no {type(value).__name__}"
        raise ConfigurationError(name, value, rule, "Use texts, numbers, lists, dicts.")


def read_request(request: CrawlRequest, spider: Spider | None = None) -> Request:
    """Convert a request of a crawl queue, from any program, to a request of Scrapy.

    This function imports nothing. If the request names a class, the project must have
    imported the class already.

    Args:
        request: A request whose callback names a method of the spider, or is ``None``
            for ``parse``.
        spider: The spider that has the methods.

    Raises:
        ValueError: The request names a method or a class that does not exist. For other
            unusable values, the exception is the one that Scrapy raises.
    """
    meta = dict(request.meta or {})
    rest = meta.pop(MARK, None)
    values: dict[str, Any] = {}
    if isinstance(rest, dict):
        values |= cast("dict[str, Any]", rest)
    headers = {**(request.headers or {}), **values.get("headers", {})}
    values |= {
        "url": request.url,
        "method": request.method,
        "headers": {name: _as_bytes(value) for name, value in headers.items()},
        "body": request.body,
        "meta": {**meta, MARK: True},
        "callback": request.callback,
    }
    if "_class" in values:
        module, _, name = str(values["_class"]).rpartition(".")
        found = getattr(sys.modules.get(module), name, None)
        if not isinstance(found, type) or not issubclass(found, Request):
            rule, remedy = "the spider's module imports the class", "Import it there."
            raise ConfigurationError("_class", values["_class"], rule, remedy)
    return request_from_dict(values, spider=spider)


def _as_bytes(value: str | list[str]) -> list[bytes]:
    values = [value] if isinstance(value, str) else value
    return [each.encode("latin-1") for each in values]


class _Held:
    """A request that this process holds until the callback's output is processed."""

    def __init__(self, taken: TakenRequest, request: Request) -> None:
        self.taken = taken
        self.request = request
        self.task = cast("asyncio.Task[None]", asyncio.current_task())
        self.done = asyncio.Event()
        self.children: set[asyncio.Task[None]] = set()  # writes of its new requests


class CrawlScheduler(BaseScheduler):
    """A scheduler whose requests are in Redis, shared by all processes of a spider.

    A request is acknowledged when Scrapy has processed the whole output of its callback
    or errback, including the item pipelines, and its new requests are in Redis. So the
    requests of a killed process return to the queue when their leases end. A request
    that cannot be written as JSON stays in the memory of its process. This class has
    many attributes because the reactor's thread and the event loop's have their own.

    Settings: ``BLS_REDIS_URL`` or ``REDIS_URL`` (default: the variable
    ``BLS_REDIS_URL``), ``PROJECT_NAME`` (default: ``BOT_NAME``), ``SPIDER_NAME``
    (default: the spider's name), ``BLS_CRAWL_LEASE`` (60 seconds),
    ``BLS_CRAWL_MAX_RETRIES`` (3; retries of a request whose process died),
    ``CLEANUP_REDIS_DATA`` (off; if on, the last process removes the crawl from Redis).

    Raises:
        ConfigurationError: A setting is missing or wrong.
    """

    def __init__(self, crawler: Crawler, dupefilter: BaseDupeFilter) -> None:
        settings = crawler.settings
        self._crawler = crawler
        self._df = dupefilter
        self._redis, self._project, self._name = place = _place_of(crawler)
        lease, retries = "BLS_CRAWL_LEASE", "BLS_CRAWL_MAX_RETRIES"
        self._queue = RequestQueue(
            *place,
            lease=to_number(lease, settings.get(lease, 60), float),
            max_retries=to_number(retries, settings.get(retries, 3), int),
        )
        self._cleanup = settings.getbool("CLEANUP_REDIS_DATA")
        self._log_all = settings.getbool("SCHEDULER_DEBUG")
        self._throttled_log = ThrottledLog()
        self._stats: Any = crawler.stats
        self._thread = LoopThread("bls-agent scrapy")
        # Used in the reactor's thread alone:
        self._out: dict[Request, _Held] = {}  # requests that Scrapy is processing
        self._memory: list[tuple[int, int, Request]] = []  # a heap
        self._changes = 0  # requests that were queued or handed out by this process
        self._looking = False
        self._is_over = False  # whether no request is queued or held by any process
        # Filled in the loop's thread, emptied in the reactor's:
        self._ready: deque[_Held] = deque()
        # Used in the loop's thread alone:
        self._pushing: set[asyncio.Task[None]] = set()
        self._holding: set[asyncio.Task[None]] = set()  # tasks to cancel at the end
        self._ending: set[asyncio.Task[None]] = set()  # tasks that acknowledge requests

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make the scheduler. Scrapy calls this method."""
        dupefilter = load_object(crawler.settings["DUPEFILTER_CLASS"])
        return cls(crawler, build_from_crawler(dupefilter, crawler))

    # In the reactor's thread:

    def open(self, spider: Spider) -> Deferred[None]:
        """Connect to Redis and begin to take requests. Scrapy calls this method.

        The Deferred fails with ``RedisUnavailableError`` if Redis cannot be reached.
        """
        self._spider = spider
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # a reactor that has no event loop
            from twisted.internet import reactor  # noqa: PLC0415 - the import installs it

            self._call_reactor = cast("Any", reactor).callFromThread
        else:
            self._call_reactor = loop.call_soon_threadsafe
        if not isinstance(self._df, CrawlDupeFilter):
            text = "DUPEFILTER_CLASS is %s: each process filters duplicates for itself"
            _log.warning(text, type(self._df).__name__)
        self._df.open()
        self._thread.start()
        return self._deferred(self._open)

    def close(self, reason: str) -> Deferred[None]:
        """Return unstarted requests to the queue, and end. Scrapy calls this method."""
        self._finish()
        if lost := len(self._memory):
            _log.warning("%d requests that stood in memory alone are lost", lost)
        self._df.close(reason)
        return self._deferred(self._close).addBoth(self._stop_thread)

    def _stop_thread(self, result: Any) -> Any:
        self._thread.stop()
        return result

    def has_pending_requests(self) -> bool:
        """Return whether requests are left in the queue, or held by any process."""
        self._finish()
        if self._memory or self._ready or self._out:
            return True
        if not self._is_over and not self._looking:
            self._looking = True
            self._begin(self._start, self._holding, self._look, self._changes)
        return not self._is_over

    def enqueue_request(self, request: Request) -> bool:
        """Return at once, and queue a request in the background.

        Returns:
            ``False`` if the filter in memory contains the request. If the filter in
            Redis contains the request, the signal ``request_dropped`` is sent later.
        """
        self._changes += 1
        self._is_over = False
        # Each process makes the start requests again, so their dont_filter is ignored.
        is_first = request.meta.get("is_start_request") and MARK not in request.meta
        unique = bool(is_first) or not request.dont_filter
        if not isinstance(self._df, CrawlDupeFilter):
            unique = False
            if not request.dont_filter and self._is_duplicate(request):
                return False
        try:
            written = write_request(request, self._spider)
        except (TypeError, ValueError) as error:
            return self._keep(request, error, unique=unique)
        self._begin(self._start, self._pushing, self._push, request, written, unique)
        return True

    def _is_duplicate(self, request: Request) -> bool:
        """Return whether a request is in the filter in memory, and log a duplicate."""
        if is_seen := self._df.request_seen(request):
            self._df.log(request, self._spider)
        return is_seen

    def _keep(self, request: Request, error: Exception, *, unique: bool) -> bool:
        """Keep a request in memory, or return ``False`` for a duplicate."""
        if unique and self._is_duplicate(request):
            return False
        if self._log_all or not self._stats.get_value("scheduler/unserializable"):
            text = (
                "%s stays in the memory of this process and is lost with it: %s. Callbacks "
                "must be methods of the spider, and meta and cb_kwargs what JSON can hold "
                "(SCHEDULER_DEBUG shows all such requests; this is the first)"
            )
            _log.warning(text, request, error)
        self._count("scheduler/unserializable")
        heappush(self._memory, (-request.priority, self._changes, request))
        self._count("scheduler/enqueued", "scheduler/enqueued/memory")
        return True

    def next_request(self) -> Request | None:
        """Return the next request or ``None`` at once. Those in memory come first."""
        self._finish()
        if self._memory:
            _, _, request = heappop(self._memory)
            request.meta[MARK] = True
            self._count("scheduler/dequeued", "scheduler/dequeued/memory")
            return request
        while self._ready:
            held = self._ready.popleft()
            self._begin(self._room.release)
            self._changes += 1
            self._is_over = False
            if not held.taken.valid:  # another process may have taken the request
                self._begin(held.task.cancel)
                continue
            self._out[held.request] = held
            self._count("scheduler/dequeued", "scheduler/dequeued/redis")
            return held.request
        return None

    def _finish(self) -> None:
        """Acknowledge the requests that Scrapy has finished.

        Scrapy sends no signal after the whole output of a request. But the engine has
        a set of requests in progress, from their download to their last item.
        """
        if self._out and (slot := self._slot) is not None:
            for request in self._out.keys() - slot.inprogress:
                held = self._out.pop(request)
                self._begin(self._acknowledge, held)

    @property
    def _slot(self) -> Any:
        return cast("Any", self._crawler.engine)._slot  # noqa: SLF001 - see _finish

    def _wake(self) -> None:
        if (slot := self._slot) is not None:
            slot.nextcall.schedule()

    def _pushed(self, request: Request, *, new: bool) -> None:
        if new:
            self._count("scheduler/enqueued", "scheduler/enqueued/redis")
            return
        self._df.log(request, self._spider)
        self._drop(request)

    def _drop(self, request: Request) -> None:
        self._crawler.signals.send_catch_log(
            signals.request_dropped, request=request, spider=self._spider
        )

    def _looked(self, changes: int, *, over: bool) -> None:
        self._looking = False
        self._is_over = over and changes == self._changes
        self._wake()

    def _count(self, *names: str) -> None:
        for name in names:
            self._stats.inc_value(name)

    def _deferred(
        self, function: Callable[[], Coroutine[Any, Any, None]]
    ) -> Deferred[None]:
        """Run a coroutine function in the loop's thread, and return its Deferred."""
        deferred: Deferred[None] = Deferred()

        def fire(future: Future[None]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is None:
                deferred.callback(None)
            else:
                deferred.errback(error)

        future = self._thread.begin(function)
        future.add_done_callback(partial(self._call_reactor, fire))
        return deferred

    # In the loop's thread:

    def _start(
        self,
        tasks: set[asyncio.Task[None]],
        function: Callable[..., Coroutine[Any, Any, None]],
        *args: Any,
    ) -> None:
        task = self._loop.create_task(function(*args))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin = self._loop.call_soon_threadsafe
        self._room = asyncio.Semaphore(AHEAD)
        try:
            stats = await self._queue.stats()
        except BlsError:
            await self._queue.aclose()
            raise
        if left := _left(stats):
            _log.info("Joining a crawl: %d requests are queued or in work", left)
        self._start(self._holding, self._take_ahead)

    async def _take_ahead(self) -> None:
        while True:
            await self._room.acquire()
            self._start(self._holding, self._hold)

    async def _hold(self) -> None:
        """Take a request, and hold it until Scrapy has finished it."""
        backoff = Backoff()
        held: _Held | None = None
        while held is None:
            try:
                async with self._queue.take() as taken:
                    if taken is not None:
                        held = await self._hand_out(taken)
            except BlsError as error:
                await self._wait_after("requests are not taken", error, backoff)

    async def _hand_out(self, taken: TakenRequest) -> _Held | None:
        """Pass a request to Scrapy. Wait until the request may be acknowledged."""
        try:
            held = _Held(taken, read_request(taken.request, self._spider))
        except Exception as error:  # noqa: BLE001 - another program wrote the request
            _log.warning("%r cannot be crawled: %s", taken, error)
            await taken.fail(str(error))
            return None
        self._ready.append(held)
        self._call_reactor(self._wake)
        await held.done.wait()
        if held.children:
            await asyncio.wait(held.children)
        return held

    def _acknowledge(self, held: _Held) -> None:
        """Acknowledge a request as soon as its new requests are in Redis."""
        held.children = set(self._pushing)
        held.done.set()
        self._holding.discard(held.task)
        self._ending.add(held.task)
        held.task.add_done_callback(self._ending.discard)

    async def _push(
        self,
        request: Request,
        written: CrawlRequest,
        unique: bool,  # noqa: FBT001 - tasks are given their arguments by position
    ) -> None:
        backoff = Backoff()
        while True:
            try:
                new = await self._queue.push(written, -request.priority, unique=unique)
            except RedisUnavailableError as error:
                await self._wait_after("requests are not queued", error, backoff)
            except BlsError as error:
                _log.error("%s is dropped: %s", request, error)
                self._call_reactor(self._drop, request)
                return
            else:
                self._call_reactor(partial(self._pushed, request, new=new))
                return

    async def _wait_after(self, effect: str, error: BlsError, backoff: Backoff) -> None:
        self._throttled_log.warn(effect, error)
        refused = isinstance(error, RedisRefusedError)
        await asyncio.sleep(backoff.failed(permanent=refused))

    async def _look(self, changes: int) -> None:
        """Find out whether any process has requests left."""
        over = False
        try:
            if awaited := self._pushing | self._ending:
                await asyncio.wait(awaited)
            over = not _left(await self._queue.stats())
        except BlsError as error:
            self._throttled_log.warn("nobody knows whether requests are left", error)
        if not over:
            await asyncio.sleep(LOOK_EVERY)
        self._call_reactor(partial(self._looked, changes, over=over))

    async def _close(self) -> None:
        for task in self._holding:
            task.cancel()
        if awaited := self._holding | self._pushing | self._ending:
            await asyncio.wait(awaited, timeout=CLOSE_TIME)
        if lost := len(self._pushing):
            _log.warning("%d requests did not reach Redis and are lost", lost)
        try:
            if self._cleanup:
                await self._clean_up()
        finally:
            await self._queue.aclose()

    async def _clean_up(self) -> None:
        """Remove the crawl from Redis, unless requests are left in the queue."""
        if left := _left(await self._queue.stats()):
            _log.info("Not cleaned up: %d requests are queued or in work", left)
            return
        report = await cleanup(self._redis, self._project, self._name, dry_run=False)
        _log.info("Cleaned up: %d keys were removed", report.removed)


def _left(stats: QueueStats) -> int:
    return stats.waiting + stats.delayed + stats.in_flight
