"""Examines a live Redis: finds every key, reads a little of it, applies the rules.

It only reads: SCAN, never KEYS; of a long value a beginning or an end. Memory and
traffic are bounded by the batch, not by the size of the database.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeAlias

import anyio

from bls_agent.connection.endpoint import Endpoint
from bls_agent.connection.pool import ConnectionPool, default_endpoint
from bls_agent.core.errors import RedisRefusedError
from bls_agent.core.keys import (
    CONTROL,
    KEYS,
    PROJECT_CONSOLE,
    PROJECT_STATUS,
    check_name,
    encode_key,
)
from bls_agent.core.settings import check_seconds
from bls_agent.ops.doctor.access import Access, check_access, roles_of, trials
from bls_agent.ops.doctor.reading import Kind, Look, kind_of, project_of
from bls_agent.ops.doctor.report import Report, Tally
from bls_agent.ops.doctor.rule import (
    Finding,
    Question,
    Rule,
    Sample,
    Severity,
    Unanswered,
)
from bls_agent.ops.doctor.rules.project import find_meant, name_fault
from bls_agent.ops.doctor.rules.table import RULES_OF
from bls_agent.ops.doctor.server import SERVER_RULES, Facts, Server, answer

__all__ = ["Progress", "examine"]

Progress: TypeAlias = Callable[[int, int], None]

SCAN_COUNT: Final = 1_000
TOGETHER: Final = 250  # keys in one trip, up to 256 KiB of each in the worst case
NAME: Final = "bls-doctor"
UNTRIED: Final = "rights-untried"
ABSENT: Final = "project-absent"
WRONG_TYPE: Final = "wrong-type"
PROJECTS: Final = 10  # of which rights are tried, where none was named


async def examine(
    redis: object = None,
    *,
    project: str = "",
    progress: Progress | None = None,
    timeout: float = 10.0,
    clock: Callable[[], float] = time.time,  # noqa: TID251 - the outermost place
) -> Report:
    """Check a Redis against the contracts; nothing is written.

    Args:
        redis: URL or client of redis-py, as for :class:`~bls_agent.ProjectAgent`.
            Default: ``BLS_REDIS_URL``.
        project: Check the keys of this one alone, and try the rights for it.
        progress: Called after each batch with the keys seen and how many there are;
            the second number is an estimate, and both only grow.
        timeout: Deadline of one round trip in seconds.
        clock: Gives Unix seconds.

    Raises:
        ConfigurationError: The URL, client or project name cannot be used.
        RedisUnavailableError: Redis cannot be reached, or refuses to be examined.
    """
    if project:
        check_name("project", project)
    check_seconds("timeout", timeout)
    endpoint = default_endpoint(os.environ) if redis is None else Endpoint.of(redis)
    pool = ConnectionPool(endpoint, NAME, timeout=timeout)
    try:
        return await _Examination(pool, project, progress, clock).run()
    finally:
        await pool.aclose()


class _Examination:
    def __init__(
        self,
        pool: ConnectionPool,
        project: str,
        progress: Progress | None,
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._project = project
        self._progress = progress
        self._clock = clock
        self._tally = Tally()
        self._keys: Counter[str] = Counter()
        self._unread: Counter[str] = Counter()
        self._projects: dict[str, None] = {}
        self._seen = 0
        self._total = 0
        self._connected: frozenset[str] | None = frozenset()
        self._offset = 0.0

    async def run(self) -> Report:
        began = anyio.current_time()
        facts = [await self._examine_server(server) async for server in self._servers()]
        refusal: RedisRefusedError | None = None
        offsets = {known.address: known.offset for known in facts}
        async for server in self._servers():
            self._offset = offsets.get(server.address, 0.0)
            try:
                await self._search(server)
            except RedisRefusedError as error:
                refusal = error
        if refusal is not None:
            await self._examine_known_keys(refusal)
        self._record_unread()
        if self._project and not self._keys:
            self._record(_server_finding(ABSENT, Severity.WARNING, self._project))
        access = await self._try_rights()
        return Report(
            groups=self._tally.groups,
            servers=facts,
            user=access.user,
            project=self._project,
            tried=access.project,
            roles=access.roles,
            keys=self._keys,
            seconds=anyio.current_time() - began,
        )

    async def _servers(self) -> AsyncIterator[Server]:
        async with aclosing(self._pool.masters()) as pool:
            async for connection in pool:
                yield Server(connection)

    async def _examine_server(self, server: Server) -> Facts:
        facts = await server.facts(self._clock, whole=self._pool.is_cluster)
        for rule in SERVER_RULES:
            self._record(rule.judge(facts))
        self._total += await server.one("DBSIZE") or 0
        names = await server.connected(facts)
        if names is None or self._connected is None:
            self._connected = None
        else:
            self._connected |= names
        return facts

    def _record(self, finding: Finding | None) -> None:
        if finding is not None:
            self._tally.add(finding)

    async def _search(self, server: Server) -> None:
        cursor, first = b"0", True
        while first or cursor != b"0":
            first = False
            cursor, keys = await server.scan(cursor, SCAN_COUNT)
            for begin in range(0, len(keys), TOGETHER):
                await self._examine_keys(server, keys[begin : begin + TOGETHER])
            self._seen += len(keys)
            self._total = max(self._total, self._seen)
            if self._progress is not None:
                self._progress(self._seen, self._total)

    async def _examine_keys(self, server: Server, keys: Iterable[bytes]) -> None:
        looks: list[Look] = []
        for encoded in keys:
            key = encoded.decode("utf-8", "surrogateescape")
            kind = kind_of(key)
            if not self._concerns(key, kind):
                continue
            self._keys[kind.row] += 1
            if kind.row:
                found = Sample(key=key, row=kind.row, fields=kind.fields)
                looks.append(Look(found))
                self._remember_project(kind)
            else:
                self._apply_to_foreign(key)
        await server.fill(looks)
        self._unread.update(look.refused for look in looks if look.refused)
        samples = [look.sample for look in looks if not look.refused and not look.gone]
        for sample in samples:
            sample.now = self._clock() + self._offset
            sample.connected = self._connected
        await self._apply(samples)

    def _concerns(self, key: str, kind: Kind) -> bool:
        if not self._project:
            return True
        if not kind.row:
            meant = find_meant(key)
            kind = kind_of(meant) if meant else kind
        return project_of(kind) == self._project

    def _remember_project(self, kind: Kind) -> None:
        name = kind.fields.get("project", "") if kind.row == "project_status" else ""
        if name and len(self._projects) < PROJECTS and not name_fault(name):
            self._projects[name] = None

    def _apply_to_foreign(self, key: str) -> None:
        sample = Sample(key=key, now=self._clock() + self._offset)
        for rule in RULES_OF.get("", ()):
            self._record(rule.judge(sample))

    async def _apply(self, samples: Sequence[Sample]) -> None:
        """Apply the rules; those that ask about other keys once more, with answers."""
        waiting: list[tuple[Rule, Sample]] = []
        for sample in samples:
            of_its_type = KEYS[sample.row].type in (None, sample.type)
            for rule in RULES_OF.get(sample.row, ()):
                if not of_its_type and rule.code != WRONG_TYPE:
                    continue
                try:
                    self._record(rule.judge(sample))
                except Unanswered:
                    waiting.append((rule, sample))
        # In their order: two questions about one thing are answered together.
        questions = {one: None for _, sample in waiting for one in sample.questions}
        answers: Mapping[Question, Any] = {}
        if questions:
            answers = await answer(self._pool, questions)
        for rule, sample in waiting:
            sample.answers = answers
            self._record(rule.judge(sample))

    def _record_unread(self) -> None:
        if not self._unread:
            return
        said = [f"{why}: {count:,}" for why, count in sorted(self._unread.items())]
        self._record(_server_finding("keys-unread", Severity.WARNING, ", ".join(said)))

    async def _examine_known_keys(self, refusal: RedisRefusedError) -> None:
        """Examine the keys whose names are known, where SCAN is refused."""
        self._record(_server_finding("scan-refused", Severity.WARNING, refusal.kind))
        if not self._project:
            return
        for row in (PROJECT_STATUS, PROJECT_CONSOLE, CONTROL):
            key = row.locate(project=self._project)
            async with self._pool.to(key) as connection:
                await self._examine_keys(Server(connection), [encode_key(key)])

    async def _try_rights(self) -> Access:
        """Try the user's rights in the project, or in some of those that were found.

        In a cluster every server has the same users, so one server is enough.
        """
        async with self._pool.to("") as connection:
            server = Server(connection)
            user: bytes = await server.one("ACL", "WHOAMI") or b""
            best = Access(user.decode("utf-8", "replace"))
            names = [self._project] if self._project else list(self._projects)
            for name in names if best.user else ():
                tried = trials(name)
                requests = {trial.request for some in tried.values() for trial in some}
                answers = await server.dry_run(best.user, requests)
                if not answers:
                    finding = _server_finding(UNTRIED, Severity.NOTE, best.user)
                    self._record(finding)
                    break
                found = Access(best.user, name, roles_of(tried, answers))
                best = max(best, found, key=Access.worth)  # of equals the first
        for finding in check_access(best):
            self._record(finding)
        return best


def _server_finding(rule: str, severity: Severity, what: str) -> Finding:
    return Finding(rule, severity, "server", values={"what": what})
