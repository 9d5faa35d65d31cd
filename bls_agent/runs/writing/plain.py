"""Runs that are written in programs without an event loop: ``with store.run(1):``."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from bls_agent.core.errors import ConfigurationError
from bls_agent.core.redaction import redact_traceback
from bls_agent.runs.writing.options import WriterOptions
from bls_agent.runs.writing.pool import WriterPools
from bls_agent.runtime.batch_writer import Flushed
from bls_agent.runtime.loop_thread import (
    LoopThread,
    SharedThread,
    refuse_in_event_loop,
    wait_for,
)

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

__all__ = ["LEAVE_GRACE", "PlainFace"]

logger = logging.getLogger(__name__)

LEAVE_GRACE: Final = 1.0  # seconds more for what is done in another event loop
AT_EXIT: Final = 1.5  # seconds that the exit of the interpreter waits at most
THREAD: Final = SharedThread("bls-agent runs", at_exit=AT_EXIT)


class PlainFace(ABC):
    """The half of a writer that is for programs without an event loop.

    All runs that are open in such a way live in one daemon thread, and those of one
    store share its connection. Thread and connection end with the last of them.
    """

    run_id: int
    _options: WriterOptions
    _pools: WriterPools
    _withdrawing: asyncio.Task[None] | None
    _thread: LoopThread | None

    @abstractmethod
    async def flush(self, timeout: float = 5.0) -> Flushed:
        """Wait until what was emitted so far is written or given up."""

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Open."""

    @abstractmethod
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave."""

    @abstractmethod
    def _tell_unflushed(self) -> Flushed:
        """Say what still waits, where nobody can wait for it."""

    def wait_flushed(self, timeout: float = 5.0) -> Flushed:
        """Wait, without an event loop, until what was emitted is written or given up.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether all of it is settled; never raises for Redis.

        Raises:
            ConfigurationError: It was opened by ``async with``, or an event loop runs here.
        """
        refuse_in_event_loop("wait_flushed", "'await run.flush()'")
        thread = self._thread
        if thread is None:
            rule = "it must be open, and opened by 'with'; in an event loop there is flush()"
            raise ConfigurationError("run", self.run_id, rule)
        flushing = thread.begin(self.flush, timeout)
        try:
            wait_for(flushing, timeout + LEAVE_GRACE)
        finally:
            unanswered = flushing.cancel() or flushing.cancelled()
        return self._tell_unflushed() if unanswered else flushing.result()

    def __enter__(self) -> Self:
        """Open in a program without an event loop; waits and raises as ``async with``."""
        refuse_in_event_loop("with store.run(...)", "'async with store.run(...)'")
        self._thread = THREAD.open(self._open_there)
        return self

    async def _open_there(self) -> None:
        try:
            await self.__aenter__()
        except BaseException:
            if self._withdrawing is not None:
                await self._withdrawing
            await self._pools.close_unused()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write how the run ended, as ``async with`` does, within the same time.

        A second signal ends the wait: what is not written then is given up.
        """
        thread = self._thread
        if thread is None:  # a forked child
            return
        self._thread = None
        leaving = thread.begin(self._leave_there, error)
        try:
            wait_for(leaving, self._options.shutdown_timeout + LEAVE_GRACE)
        finally:
            THREAD.leave()
            _log_failure(leaving)

    async def _leave_there(self, error: BaseException | None) -> None:
        try:
            kind = None if error is None else type(error)
            await self.__aexit__(kind, error, None)
        finally:
            await self._pools.close_unused()


def _log_failure(leaving: Future[None]) -> None:
    """Tell the log of a fault of ours: it is no business of the host's."""
    if leaving.done() and not leaving.cancelled():
        error = leaving.exception()
        if error is not None:
            logger.error("leaving a run failed\n%s", redact_traceback(error))
