"""A real server that can be hurt in every way in which servers fail, and healed."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

from redis.exceptions import BusyLoadingError, RedisError

from bls_agent.devserver import DevServer
from tests.kit.admin import AdminConnection

DEADLINE: Final = 20.0
PROBE_INTERVAL: Final = 0.01
TINY: Final = "1"  # bytes of memory: less than any server uses
SNAPSHOT: Final = "dump.rdb"
STOP_WRITES: Final = "stop-writes-on-bgsave-error"
EVENTS_INTERVAL: Final = "loading-process-events-interval-bytes"


class HurtableServer(DevServer):
    """A server of your own that can be frozen, killed, filled, demoted and so on.

    Each injury is a context manager: it is there inside of the block, and healed at
    its end. All of them work on Valkey 8 and 9 and on Redis 6.2 and 7, without root.
    They block for some milliseconds, so in an event loop take care of those that
    restart the server, or put them into a thread.

    Args as :class:`~bls_agent.devserver.DevServer`: with ``append_only`` what was
    answered survives :meth:`killed`.
    """

    def ask(self, *words: str | bytes | float) -> Any:
        """Send one request over a connection of its own; an administrator's way in.

        Raises:
            redis.RedisError: The server answered with an error, or not at all.
        """
        with closing(AdminConnection(self.port)) as admin:
            return admin.ask(*words)

    # -- the process

    @contextmanager
    def frozen(self) -> Generator[None]:
        """Stopped in its tracks: connections are accepted and stay, answers do not come."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    @contextmanager
    def killed(self) -> Generator[None]:
        """Gone by SIGKILL: nobody listens. Started again at the end of the block."""
        self.kill()
        try:
            yield
        finally:
            self.restart()

    @contextmanager
    def paused(self, seconds: float) -> Generator[None]:
        """``CLIENT PAUSE``: connections live, requests wait.

        The block ends when the time is over, because the order to end a pause waits, too.
        """
        over = time.monotonic() + seconds
        self.ask("CLIENT", "PAUSE", round(seconds * 1000), "ALL")
        try:
            yield
        finally:
            time.sleep(max(0.0, over - time.monotonic()))

    @contextmanager
    def loading(self, *, seconds: float = 10.0) -> Generator[None]:
        """Started again and reading its data: every request is refused with LOADING.

        Keys of our own make it last; they are gone at the end of the block, and what
        was there before is there again, also without ``append_only``.

        Args:
            seconds: How long it takes if the block does not end before, at most 15:
                a server that takes longer counts as one that does not start. Redis 6.2
                cannot be hurried: the block then ends when it has read all.
        """
        options = self._options
        keys, slowly = self._write_ballast(seconds)
        self._options = (*options, *slowly)
        self.kill()
        starting = threading.Thread(target=self.restart, daemon=True)
        starting.start()
        try:
            self._wait_for(self._is_loading)
            yield
        finally:
            with suppress(RedisError):  # before 7 it takes its time
                self.ask("CONFIG", "SET", "key-load-delay", "0")
            starting.join(DEADLINE + seconds)
            self._options = options
            self.ask("UNLINK", *keys)
            self._remove_snapshot()

    # -- what it refuses

    @contextmanager
    def full(self) -> Generator[None]:
        """Out of memory: whatever could take more is refused with OOM."""
        with self._configured({"maxmemory": TINY, "maxmemory-policy": "noeviction"}):
            yield

    @contextmanager
    def demoted(self) -> Generator[None]:
        """A replica of a master that is not there: READONLY; waiting reads are released."""
        with socket.socket() as dead:  # bound and not listening: nobody can take it
            dead.bind(("127.0.0.1", 0))
            self.ask("REPLICAOF", "127.0.0.1", dead.getsockname()[1])
            try:
                yield
            finally:
                self.ask("REPLICAOF", "NO", "ONE")

    @contextmanager
    def without_disk(self) -> Generator[None]:
        """Snapshots fail: writes, and PING, are refused with MISCONF."""
        self._remove_snapshot()
        in_the_way = self.folder / SNAPSHOT / "in-the-way"
        in_the_way.mkdir(parents=True)
        with self._configured({"save": "3600 1000000", STOP_WRITES: "yes"}):
            try:
                self._save_in_background(b"err")
                yield
            finally:
                in_the_way.rmdir()
                in_the_way.parent.rmdir()
                self._save_in_background(b"ok")
                self._remove_snapshot()

    @contextmanager
    def without_replicas(self) -> Generator[None]:
        """Fewer replicas than it wants: writes are refused with NOREPLICAS."""
        with self._configured({"min-replicas-to-write": "1"}):
            yield

    @contextmanager
    def crowded(self) -> Generator[None]:
        """``maxclients`` is reached: new connections are refused, old ones live on."""
        with self._configured({"maxclients": "1"}):
            yield

    # -- what it does to clients and data

    def disconnect_clients(self) -> None:
        """Close the connection of every client, as an administrator would."""
        self.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    @contextmanager
    def _configured(self, values: dict[str, str]) -> Generator[None]:
        """Set values over a connection that stays, because new ones may be refused."""
        with closing(AdminConnection(self.port)) as admin:
            before = {name: admin.ask("CONFIG", "GET", name)[1] for name in values}
            try:
                for name, value in values.items():
                    admin.ask("CONFIG", "SET", name, value)
                yield
            finally:
                for name, old in before.items():
                    admin.ask("CONFIG", "SET", name, old)

    def _write_ballast(self, seconds: float) -> tuple[list[str], list[str]]:
        """Write what takes long to load; give its keys and the options that slow it.

        A server that loads answers after so many bytes only. Where that number cannot
        be changed (before Redis 7) it takes large values.
        """
        with closing(AdminConnection(self.port)) as admin:
            fine = admin.ask("CONFIG", "GET", EVENTS_INTERVAL) != []
            count, size = (400, 2_048) if fine else (32, 1_048_576)
            keys = [f"bls-agent-chaos-{n}-{os.urandom(4).hex()}" for n in range(count)]
            for key in keys:
                admin.ask("SET", key, os.urandom(size))
        if self._append_only:  # what is in the log one by one is loaded in one go
            self.ask("BGREWRITEAOF")
            self._wait_for(self._has_rewritten)
        else:
            self.ask("SAVE")
        delay = str(round(seconds * 1_000_000 / count))
        interval = [f"--{EVENTS_INTERVAL}", "1024"] if fine else []
        return keys, ["--key-load-delay", delay, *interval]

    def _has_rewritten(self) -> bool:
        info = self.ask("INFO", "persistence")
        states = (b"aof_rewrite_in_progress:0", b"aof_rewrite_scheduled:0")
        return all(state in info for state in states)

    def _remove_snapshot(self) -> None:
        """Leave no file that a server without ``append_only`` would read again."""
        (self.folder / SNAPSHOT).unlink(missing_ok=True)

    def _save_in_background(self, wanted: bytes) -> None:
        def has_ended() -> bool:
            info = self.ask("INFO", "persistence")
            ended = b"rdb_bgsave_in_progress:0" in info
            return ended and b"rdb_last_bgsave_status:" + wanted in info

        self._wait_for(lambda: b"started" in self.ask("BGSAVE"))
        self._wait_for(has_ended)

    def _is_loading(self) -> bool:
        try:
            self.ask("GET", "x")
        except RedisError as error:
            return isinstance(error, BusyLoadingError)
        message = "the server had read its data before it was asked"
        raise RuntimeError(message)

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not condition():
            if time.monotonic() > deadline:
                message = "the server did not get there"
                raise RuntimeError(message)
            time.sleep(PROBE_INTERVAL)
