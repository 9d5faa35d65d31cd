"""Examines a live Redis: finds every key, reads a part of its value, applies the rules.

The doctor only reads. It finds keys with SCAN, never with KEYS, and reads only a part of
a long value. It works on one batch of keys after the other. Memory and traffic at one
time therefore depend on the size of a batch, not on the size of the database.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import anyio

from bls_agent.connection.endpoint import RedisSource
from bls_agent.connection.pool import ConnectionPool, find_endpoint
from bls_agent.core.checks import check_seconds
from bls_agent.core.errors import RedisRefusedError, RedisUnavailableError
from bls_agent.core.keys import (
    KEYS,
    PROJECT_KEYS,
    check_name,
    encode_key,
)
from bls_agent.ops.doctor.reading import Kind, Look, kind_of, project_of
from bls_agent.ops.doctor.report import Report
from bls_agent.ops.doctor.rule import (
    Finding,
    Rule,
    Sample,
    Severity,
    Source,
    Unanswered,
)
from bls_agent.ops.doctor.rules.project import find_meant
from bls_agent.ops.doctor.rules.table import RULES_OF
from bls_agent.ops.doctor.server import SERVER_RULES, Facts, Server, answered

__all__ = ["Progress", "examine"]

Progress: TypeAlias = Callable[[int, int], None]

SCAN_COUNT: Final = 1_000
TOGETHER: Final = 250  # keys that are read at once, with at most 256 KiB of each key
NAME: Final = "bls-doctor"
WRONG_TYPE: Final = "wrong-type"
NOT_READY: Final = ("loading", "master_down")  # kinds of errors that a server answers


async def examine(
    redis: RedisSource | None = None,
    *,
    project: str = "",
    progress: Progress | None = None,
    timeout: float = 10.0,
    clock: Callable[[], float] = time.time,  # noqa: TID251 - chosen here, passed on as an argument
) -> Report:
    """Check the keys and values of a Redis against the protocols; write nothing.

    Args:
        redis: URL or client of redis-py, as for :class:`~bls_agent.ProjectAgent`.
            Default: ``BLS_REDIS_URL``.
        project: Check only the keys of this project. Default: all keys.
        progress: Called after each batch with the number of keys seen and the total
            number of keys. The total is an estimate. Neither number ever shrinks.
        timeout: Deadline of one round trip in seconds.
        clock: Returns Unix seconds.

    Raises:
        ConfigurationError: The URL, client or project name cannot be used.
        RedisUnavailableError: Redis cannot be reached, or refuses to be examined.
    """
    if project:
        check_name("project", project)
    check_seconds("timeout", timeout)
    endpoint = find_endpoint(redis)
    pool = ConnectionPool(endpoint, NAME, timeout=timeout)
    try:
        return await _Examination(pool, project, progress, clock).run()
    finally:
        await pool.aclose()


@dataclass
class _Examination:
    pool: ConnectionPool
    project: str
    progress: Progress | None
    clock: Callable[[], float]
    report: Report = field(default_factory=Report)
    unread: Counter[str] = field(default_factory=Counter[str])  # keys by reason
    seen: int = 0
    total: int = 0
    connected: frozenset[str] | None = frozenset()
    offset: float = 0.0  # seconds by which the server's clock is ahead of ours

    async def run(self) -> Report:
        began, report = anyio.current_time(), self.report
        report.project = self.project
        async for server in self._servers():
            report.servers.append(await self._examine_server(server))
        refusal: RedisUnavailableError | None = None
        offsets = {known.address: known.offset for known in report.servers}
        async for server in self._servers():
            self.offset = offsets.get(server.address, 0.0)
            try:
                await self._search(server)
            except RedisUnavailableError as error:
                is_answer = isinstance(error, RedisRefusedError)
                if not is_answer and error.kind not in NOT_READY:
                    raise
                refusal = error
        if refusal is not None:
            await self._examine_known_keys(refusal)
        if self.unread:
            counts = sorted(self.unread.items())
            counted = ", ".join(f"{why}: {count:,}" for why, count in counts)
            self._add("keys-unread", Severity.WARNING, counted)
        if self.project and not report.keys:
            self._add("project-absent", Severity.WARNING, self.project)
        report.seconds = anyio.current_time() - began
        return report

    def _add(self, rule: str, severity: Severity, what: str, **more: str) -> None:
        values = {"what": what, **more}
        self.report.add(Finding(rule, severity, Source.SERVER, values=values))

    async def _servers(self) -> AsyncIterator[Server]:
        async with aclosing(self.pool.masters()) as pool:
            async for connection in pool:
                yield Server(connection)

    async def _examine_server(self, server: Server) -> Facts:
        facts = await server.facts(self.clock, whole=self.pool.is_cluster)
        for rule in SERVER_RULES:
            self.report.add(rule.judge(facts))
        self.total += await server.one("DBSIZE") or 0
        names = await server.connected(facts)
        if names is None or self.connected is None:
            self.connected = None
        else:
            self.connected |= names
        return facts

    async def _search(self, server: Server) -> None:
        connection, cursor, opened = server.connection, b"", 0
        while cursor != b"0":
            request = ("SCAN", cursor or b"0", "COUNT", SCAN_COUNT)
            following, keys = await connection.read(*request)
            if cursor and connection.generation != opened:
                # Another process may serve the keys, which has them in another order.
                self._add("scan-broken", Severity.WARNING, server.address)
            cursor, opened = following, connection.generation
            for begin in range(0, len(keys), TOGETHER):
                await self._examine_keys(server, keys[begin : begin + TOGETHER])
            self.seen += len(keys)
            self.total = max(self.total, self.seen)
            if self.progress is not None:
                self.progress(self.seen, self.total)

    async def _examine_keys(self, server: Server, keys: Iterable[bytes]) -> None:
        looks: list[Look] = []
        for encoded in keys:
            key = encoded.decode("utf-8", "surrogateescape")
            kind = kind_of(key)
            if not self._concerns(key, kind):
                continue
            self.report.keys[kind.row] += 1
            if kind.row:
                looks.append(Look(Sample(key=key, row=kind.row, fields=kind.fields)))
            else:
                foreign = Sample(key=key, now=self.clock() + self.offset)
                for rule in RULES_OF[""]:
                    self.report.add(rule.judge(foreign))
        await server.fill(looks)
        self.unread.update(look.refused for look in looks if look.refused)
        samples = [
            look.sample for look in looks if not look.refused and not look.vanished
        ]
        for sample in samples:
            sample.now = self.clock() + self.offset
            sample.connected = self.connected
        await self._apply(samples)

    def _concerns(self, key: str, kind: Kind) -> bool:
        if not self.project:
            return True
        if not kind.row:
            meant = find_meant(key)
            kind = kind_of(meant) if meant else kind
        return project_of(kind) == self.project

    async def _apply(self, samples: Sequence[Sample]) -> None:
        """Apply the rules.

        A rule that needs data of other keys is applied again after these keys were read.
        """
        waiting: list[tuple[Rule, Sample]] = []
        for sample in samples:
            of_its_type = KEYS[sample.row].type in (None, sample.type)
            for rule in RULES_OF.get(sample.row, ()):
                if not of_its_type and rule.code != WRONG_TYPE:
                    continue
                try:
                    self.report.add(rule.judge(sample))
                except Unanswered:
                    waiting.append((rule, sample))
        # Related questions stay together, because the dict keeps the order of the rules.
        asked = {one: None for _, sample in waiting for one in sample.questions}
        requests = [[*map(encode_key, question)] for question in asked]
        answers = answered(asked, await self.pool.read_many(requests))
        for rule, sample in waiting:
            sample.answers = answers
            self.report.add(rule.judge(sample))

    async def _examine_known_keys(self, refusal: RedisUnavailableError) -> None:
        """Examine only the keys of the named project, because SCAN is refused."""
        self._add("scan-refused", Severity.WARNING, refusal.kind)
        if not self.project:
            return
        for row in PROJECT_KEYS:
            key = row.locate(project=self.project)
            async with self.pool.to(key) as connection:
                await self._examine_keys(Server(connection), [encode_key(key)])
