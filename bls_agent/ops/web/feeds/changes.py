"""The journal of status changes, and the webhook that posts each change.

Posts are signed as in Standard Webhooks (https://www.standardwebhooks.com), because
libraries in most languages can verify these signatures. Each post opens its own
connection and has one deadline.
"""

from __future__ import annotations

import base64
import hmac
import logging
import math
import secrets
import ssl
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPSConnection
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import anyio

import bls_agent
from bls_agent.connection.reconnect import Reminders
from bls_agent.core.backoff import Backoff
from bls_agent.core.codec import (
    JSONObject,
    decode_object,
    encode,
    format_timestamp,
    parse_timestamp,
)
from bls_agent.core.errors import ContractError
from bls_agent.core.keys import show_name
from bls_agent.ops.fleet import Condition, ProjectView
from bls_agent.ops.terminal import visible
from bls_agent.ops.texts import Texts
from bls_agent.ops.web.chat import ANSWER, PAUSE, Post, refusal_in, write_lines
from bls_agent.ops.web.config import WebhookTarget
from bls_agent.ops.web.feeds.fleet import FleetFeed
from bls_agent.ops.web.feeds.watch import Currency, clock
from bls_agent.ops.web.requests import project_of_path, project_path
from bls_agent.ops.web.rights import EVERY_ROLE, Grants
from bls_agent.runtime.threads import HandlerThreads

if TYPE_CHECKING:
    from bls_agent.ops.web.feeds.kept_changes import KeptChanges

KEPT: Final = 5_000  # changes that the journal keeps
TICK: Final = 1.0  # seconds between two checks while nothing happens
MISSING_FOR: Final = 5.0  # seconds until a missing status counts as a change
EXPLAINED_IN: Final = 1.5  # seconds within which a read of the log finds a reason
# Seconds after an outage, or a start with kept changes: services refresh every 30 s.
SETTLE: Final = 45.0
EXPLAINED: Final = frozenset({Condition.FAULT, Condition.ERROR})
ABSENT: Final = frozenset({Condition.STALE, Condition.NEVER})

MOST: Final = 1_000  # changes that wait to be posted
AT_ONCE: Final = 100  # changes in one post
DEADLINE: Final = 10.0  # seconds for one post, from the DNS lookup to the response
LONGEST_PAUSE: Final = 60.0  # seconds between two posts
GIVE_UP: Final = 3_600.0  # seconds after which a post is dropped

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StatusChange:
    """One change of a project's status, or the end of an outage.

    For an outage, ``project`` is ``""``, ``after`` is ``None``, and every status was
    unknown from ``since`` to ``at``.
    """

    number: int  # counts the changes of this console from 1
    project: str
    before: Condition | None  # None for a new project
    after: Condition | None
    reason: str = ""  # why the status is 故障 or 报错, if that is known
    since: float | None = None  # Unix time; None for the change of a status
    at: float  # Unix time by the clock of Redis, of the change or the first read

    @property
    def is_outage(self) -> bool:
        return not self.project

    def to_dict(self) -> JSONObject:
        return {
            "id": self.number,
            "projectName": show_name(self.project),
            "path": "" if self.is_outage else project_path(self.project),
            "from": self.before and self.before.value,
            "to": self.after and self.after.value,
            "since": None if self.since is None else format_timestamp(self.since),
            "reason": visible(self.reason),
            "timestamp": format_timestamp(self.at),
        }


def read_kept(entries: Iterable[bytes]) -> list[StatusChange]:
    """Read kept changes, oldest first, and number them from 1.

    Several consoles may write the same change to the stream. A change to the status that
    the project already has is therefore ignored. An entry that cannot be read is ignored,
    too.
    """
    known: dict[str, Condition] = {}
    found: list[StatusChange] = []
    for entry in entries:
        try:
            fields: dict[str, Any] = decode_object(entry)
            if not isinstance(fields["reason"], str):
                continue
            change = StatusChange(
                number=len(found) + 1,
                project=project_of_path(fields["path"]),
                before=fields["from"] and Condition(fields["from"]),
                after=fields["to"] and Condition(fields["to"]),
                reason=fields["reason"],
                since=_unix(fields["since"]),
                at=_unix(fields["timestamp"]) or 0.0,
            )
        except (ContractError, KeyError, ValueError, AttributeError):
            continue
        if change.after is None or known.get(change.project) is not change.after:
            found.append(change)
        if change.after is not None:
            known[change.project] = change.after
    return found


def _unix(stamp: object) -> float | None:
    moment = parse_timestamp(stamp)
    return moment.timestamp() if moment else None


class Journal:
    """Records the changes of all statuses while the console runs.

    With ``kept``, the journal begins with the changes that earlier consoles have stored
    in Redis. If a status has changed since then, the journal records this change, too.

    During an outage of Redis the journal records nothing. At the end of the outage, the
    journal records from when to when the statuses were unknown. After a restart of Redis,
    all statuses are missing until the services refresh them. For some time after an
    outage, and after a start with kept changes, a missing status is therefore no change.
    """

    def __init__(
        self,
        fleet: FleetFeed,
        listeners: Sequence[Callable[[StatusChange], None]],
        kept: KeptChanges | None = None,
    ) -> None:
        self._fleet = fleet
        self._listeners = listeners
        self._kept = kept
        self._known: dict[str, Condition] = {}
        # Project → whether its status is absent, and when the journal records the change.
        self._doubtful: dict[str, tuple[bool, float]] = {}
        self._begun = self._away = False
        self._settled_at = 0.0
        self._count = 0
        self._changes: deque[StatusChange] = deque(maxlen=KEPT)
        self.since: float = clock()  # Unix time of the console's start

    def changes(
        self,
        project: str,
        after: int,
        limit: int,
        grants: Grants = EVERY_ROLE,
        *,
        before: float = math.inf,
        kind: str = "",
        text: str = "",
    ) -> list[StatusChange]:
        """Return the newest changes between two numbers, oldest first.

        ``project`` and ``kind`` (the value of the new condition) select changes, and
        ``""`` selects all. The project's name or the reason must contain ``text``, in
        upper or lower case. Outages belong to every project, and every user sees them.
        """
        found: list[StatusChange] = []
        for change in reversed(self._changes):
            if change.number <= after or len(found) == limit:
                break
            name, to = change.project, change.after.value if change.after else ""
            is_shown = project in {"", name} and grants.sees(name)
            wanted = change.is_outage or is_shown
            sought = f"{name}\n{change.reason}".casefold() if text else ""
            wanted = wanted and kind in {"", to} and text.casefold() in sought
            if wanted and change.number < before:
                found.append(change)
        return found[::-1]

    async def run(self) -> None:
        if self._kept is not None:
            kept = read_kept(await self._kept.load())
            self._changes.extend(kept)
            self._count = len(kept)
            self._known = {one.project: one.after for one in kept if one.after}
            if kept:  # Redis may have restarted since then
                self._settled_at = anyio.current_time() + SETTLE
        place = 0
        with self._fleet.wanted():
            while not self._fleet.closed:
                await self._fleet.ring.wait(place, TICK)
                place = self._fleet.ring.end
                try:
                    self.check(anyio.current_time())
                except Exception:  # an error here must not stop the console
                    logger.exception("the journal of status changes missed a look")

    def check(self, now: float) -> None:
        match self._fleet.currency:
            case Currency.READING:
                return
            case Currency.CURRENT:
                if self._away:
                    self._away, self._settled_at = False, now + SETTLE
                    self._doubtful.clear()
                    since, at = self._fleet.away_since, self._fleet.read_at
                    self._add("", at, before=None, after=None, since=since)
                self._compare(self._fleet.found, now)
            case Currency.FORBIDDEN | Currency.AWAY:
                self._away = True

    def _compare(self, views: Mapping[str, ProjectView], now: float) -> None:
        for project, view in views.items():
            before, after = self._known.get(project), view.condition
            if after is before:
                self._doubtful.pop(project, None)
            elif before is None and not (
                self._begun and now >= self._settled_at and after not in ABSENT
            ):
                # No change at the first check, or while statuses may still be missing.
                if after not in ABSENT or now >= self._settled_at:
                    self._known[project] = after
            elif self._is_believed(project, view, now):
                self._record(project, before, view)
        for project in self._known.keys() - views.keys():
            del self._known[project]
            self._doubtful.pop(project, None)
        self._begun = True

    def _is_believed(self, project: str, view: ProjectView, now: float) -> bool:
        """Return whether to record a change now or later.

        1. A status is absent: some seconds later, because its service may only be late.
        2. 故障 or 报错 has no reason: after the next read of the log, which may have one.
        3. Any other change: now.
        """
        is_absent = view.condition in ABSENT
        if is_absent:
            due = max(now + MISSING_FOR, self._settled_at)
        elif view.condition in EXPLAINED and not view.reason:
            due = now + EXPLAINED_IN
        else:
            return True
        doubt = self._doubtful.get(project)
        if doubt is None or doubt[0] is not is_absent:
            doubt = self._doubtful[project] = (is_absent, due)
        return now >= doubt[1]

    def _record(
        self, project: str, before: Condition | None, view: ProjectView
    ) -> None:
        self._doubtful.pop(project, None)
        after = self._known[project] = view.condition
        about = {"before": before, "after": after, "reason": view.reason}
        change = self._add(project, view.changed_at, **about)
        for listener in self._listeners:
            listener(change)

    def _add(self, project: str, at: float, **about: Any) -> StatusChange:
        self._count += 1
        change = StatusChange(number=self._count, project=project, at=at, **about)
        self._changes.append(change)
        if self._kept is not None:
            self._kept.put(encode(change.to_dict()))
        return change


class Webhook:
    """Posts changes in order, one post after the other, to a program or a chat service.

    The webhook repeats a post with growing pauses until the receiver returns a status
    2xx. After an hour the webhook drops the post. Redirections are not followed. If more
    than 1,000 changes wait, the webhook drops the oldest changes, and the next post
    contains the number of dropped changes.
    """

    def __init__(
        self,
        target: WebhookTarget,
        about: Mapping[str, str],
        counts: Counter[str],
        texts: Texts = MappingProxyType({}),  # for messages to a chat service
    ) -> None:
        self._target = target
        self._texts = texts
        self._about = dict(about)  # names this console in every post
        self._counts = counts
        secure = target.address.lower().startswith("https:")
        self._tls = ssl.create_default_context() if secure else None
        self._waiting: deque[StatusChange] = deque()
        self._more = anyio.Event()
        self._posting = 0  # changes in the current post
        self._dropped = 0  # changes dropped since the last accepted post
        self._reminders = Reminders()
        # Not threads of anyio, because the process cannot end before such a thread.
        self._threads = HandlerThreads()

    def put(self, change: StatusChange) -> None:
        if len(self._waiting) >= MOST:
            self._waiting.popleft()
            self._drop(1)
        self._waiting.append(change)
        self._more.set()

    async def run(self) -> None:
        try:
            while True:
                if not self._waiting:
                    self._more = anyio.Event()
                    await self._more.wait()
                await self._deliver()
        finally:
            self._threads.close()
            if left := len(self._waiting) + self._posting:
                text = "the console ends; %d changes were not posted to %s"
                logger.warning(text, left, self._target.place)

    async def _deliver(self) -> None:
        """Post the oldest changes; repeat the post for an hour until it succeeds."""
        dropped, chat = self._dropped, self._target.chat
        changes = [change.to_dict() for change in islice(self._waiting, AT_ONCE)]
        if chat is None:
            write = self._draft(changes)
        else:
            head = f"bls-agent · {self._about.get('title') or self._about['redis']}"
            if dropped:
                head += f" · {self._texts['chat_dropped'].format(count=dropped)}"
            lines = write_lines(head, changes, chat.longest, self._texts)
            write = partial(chat.write, lines, self._target.secret)
            del changes[len(lines) - 1 :]  # the next post has them
        number = self._posting = len(changes)
        for _ in changes:
            self._waiting.popleft()
        backoff, began = Backoff(base=1.0, cap=LONGEST_PAUSE), anyio.current_time()
        while reason := await self._post(write):
            self._counts["webhook_posts_failed"] += 1
            self._warn(reason)
            if anyio.current_time() - began > GIVE_UP:
                self._posting = 0
                self._drop(number)
                return
            await anyio.sleep(backoff.failed())
        self._posting = 0
        self._counts["webhook_changes_posted"] += number
        self._dropped -= dropped
        if backoff.failures:
            logger.info("webhook %s takes posts again", self._target.place)
            self._reminders = Reminders()
        if chat is not None:
            await anyio.sleep(PAUSE)

    def _draft(self, changes: Sequence[JSONObject]) -> Callable[[float], Post]:
        """Return a function that signs a post, for a receiver that is no chat service."""
        name = f"msg_{secrets.token_hex(12)}"
        data = {**self._about, "dropped": self._dropped, "changes": changes}
        body = encode(
            {
                "type": "status.changed",
                "timestamp": format_timestamp(clock()),
                "data": data,
            }
        )
        return lambda now: Post(body, self._sign(name, body, now))

    def _drop(self, number: int) -> None:
        self._dropped += number
        self._counts["webhook_changes_dropped"] += number

    def _warn(self, reason: str) -> None:
        if not self._reminders.is_due("webhook"):
            return
        text = "webhook %s: %s; it is tried again (%d changes wait, %d were dropped)"
        place, waiting = self._target.place, len(self._waiting)
        logger.warning(text, place, reason, waiting, self._dropped)

    async def _post(self, write: Callable[[float], Post]) -> str:
        """Post once; return the fault, or ``""`` if the receiver accepted the post."""
        try:
            with anyio.fail_after(DEADLINE):
                status, answer = await self._send(write(clock()))
        except TimeoutError:
            return f"no answer within {DEADLINE:g} s"
        except Exception as error:  # noqa: BLE001 - no failed post may end the console
            return str(error.__cause__ or error) or type(error).__name__
        if 200 <= status < 300:  # noqa: PLR2004 - status codes of HTTP
            return refusal_in(answer)
        return f"it answered {status}"

    def _sign(self, name: str, body: bytes, now: float) -> dict[str, str]:
        moment = str(int(now))
        signed = f"{name}.{moment}.".encode() + body
        digest = base64.b64encode(
            hmac.digest(self._target.key, signed, "sha256")
        ).decode()
        return {
            "webhook-id": name,
            "webhook-timestamp": moment,
            "webhook-signature": f"v1,{digest}",
        }

    async def _send(self, post: Post) -> tuple[int, bytes]:
        """Post; return the status, and for a chat service the response's body."""
        parts = urlsplit(self._target.address)
        query = "&".join(filter(None, (parts.query, post.query)))
        path = (parts.path or "/") + (f"?{query}" if query else "")
        headers = {
            "user-agent": f"bls-agent/{bls_agent.__version__}",
            "content-type": "application/json",
            "connection": "close",
            **post.headers,
        }
        host = parts.hostname or ""
        connection = (
            HTTPSConnection(host, parts.port, timeout=DEADLINE, context=self._tls)
            if self._tls
            else HTTPConnection(host, parts.port, timeout=DEADLINE)
        )

        def send() -> tuple[int, bytes]:
            with closing(connection):
                connection.request("POST", path, post.body, headers)
                answer = connection.getresponse()
                content = answer.read(ANSWER) if self._target.chat else b""
                return answer.status, content

        answered: tuple[int, bytes] = await self._threads.run(send)
        return answered
