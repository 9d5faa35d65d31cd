"""Requests to GitHub: answers that are complete, or an error that says what to do."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Final, TypeAlias, TypeVar

import anyio
import anyio.to_thread

from bls_agent.assets.sources import LOOPBACK
from bls_agent.core.codec import decode_object
from bls_agent.core.errors import (
    ConfigurationError,
    ContractError,
    MissingExtraError,
    SourceError,
)
from bls_agent.core.settings import check_seconds

try:
    import httpx2
    import stamina
except ModuleNotFoundError:
    raise MissingExtraError("assets", "reading from GitHub") from None

__all__ = [
    "JSON",
    "NOT_MODIFIED",
    "RAW",
    "SHA",
    "Answer",
    "Client",
    "GitHubApi",
    "Question",
]

MAX_JSON: Final = 32 * 2**20  # bytes; GitHub's lists end at 7 MB
ATTEMPTS: Final = 4
REDIRECTS: Final = 5
SLOWEST: Final = 2_000  # bytes a second: a narrow link, not a dead one
UNTOLD: Final = 60.0  # seconds: GitHub's advice where a limit does not say how long
NOT_MODIFIED: Final = 304
REDIRECTED: Final[Mapping[str, tuple[int, ...]]] = {
    "GET": (301, 302, 303, 307, 308),
    "PUT": (307, 308),
}
JSON: Final = "application/vnd.github+json"
RAW: Final = "application/vnd.github.raw+json"
SHA: Final = "application/vnd.github.sha"

_REPO: Final = re.compile(r"[\w-][\w.-]{0,99}/[\w.-]{1,100}", re.ASCII)
_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_REMEDIES: Final[Mapping[int, str]] = {
    401: ": the token is wrong or has expired",
    403: ": the token lacks the right to contents",
    404: ": there is no such repository, branch or commit, or the token may not read it",
    409: ": the repository is empty, or the branch is protected",
    422: ": there is no such branch or commit",
}
_T = TypeVar("_T")

Client: TypeAlias = httpx2.AsyncClient
_make_tls: Final = cache(httpx2.create_ssl_context)  # takes some 50 ms


class _PassingError(SourceError):
    """A failure that may be over at the next attempt, or after ``retry_after``."""


class _QuietURL(httpx2.URL):
    """A URL that hides its query: an archive's is a password, and URLs are logged."""

    def __str__(self) -> str:
        return super().__str__().partition("?")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request; statuses in ``also`` count as answers, too."""

    path: str
    method: str = "GET"
    accept: str = JSON
    etag: str = ""
    body: bytes | None = None
    limit: int = MAX_JSON
    also: tuple[int, ...] = ()
    is_archive: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def message(self) -> str:
        """The server's message, if the answer is an error."""
        try:
            return str(decode_object(self.body).get("message", ""))[:200]
        except ContractError:
            return ""

    @property
    def retry_after(self) -> float | None:
        """Give the seconds for which a limit holds, by the server's clock."""
        said, left = self.headers.get("retry-after"), "x-ratelimit-remaining"
        if said is None and self.headers.get(left) == "0":
            said = self.headers.get("x-ratelimit-reset", "")
            return self._until(said) + 1
        if said is not None:
            return float(said) if _SECONDS.fullmatch(said) else self._until(said)
        is_limit = self.status == 429 or "rate limit" in self.message.lower()  # noqa: PLR2004 - a status
        return UNTOLD if is_limit else None

    def _until(self, time: str) -> float:
        try:
            end = float(time) if time.isdecimal() else _parse_date(time)
            return max(0.0, end - _parse_date(self.headers.get("date", "")))
        except ValueError:
            return UNTOLD


def _parse_date(text: str) -> float:
    return parsedate_to_datetime(text).timestamp()


class GitHubApi:
    """The API of one repository; arguments as of ``GitHubSource``.

    ``branch`` is only a part of the name. The token is sent to the host of ``base_url``
    alone.
    """

    def __init__(
        self,
        repo: str,
        branch: str,
        token: str,
        *,
        base_url: str,
        timeout: float,
        max_wait: float,
        pause: float,
    ) -> None:
        if not _REPO.fullmatch(repo) or repo.endswith(("/.", "/..")):
            raise ConfigurationError("repo", repo, "it is written owner/name")
        if not re.fullmatch("[!-~]*", token):
            rule = "a token is printable ASCII without blanks"
            raise ConfigurationError("token", "***", rule)
        self._repo, self._token = repo, token
        self._base = _check_base_url(base_url, has_token=bool(token))
        host = self._base.netloc.decode().removeprefix("api.")
        self.name = f"{host}/{repo}" + (f"@{branch}" if branch else "")
        self._timeout = check_seconds("timeout", timeout)
        self._max_wait = check_seconds("max_wait", max_wait)
        self._pause = check_seconds("pause", pause)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Client]:
        """Open connections for one call, bound to no other loop or process."""
        tls = await anyio.to_thread.run_sync(_make_tls)
        async with httpx2.AsyncClient(verify=tls, timeout=self._timeout) as client:
            yield client

    async def ask(
        self, client: Client, question: Question, read: Callable[[Answer], _T]
    ) -> _T:
        """Ask until there is an answer that can be read, four times at most."""
        attempts = stamina.retry_context(
            on=self._pause_after,
            attempts=ATTEMPTS,
            timeout=None,
            wait_initial=self._pause,
            wait_jitter=self._pause,
        )
        async for attempt in attempts:
            with attempt:
                answer = await self._follow(client, question)
                is_fine = answer.status in (200, 201, *question.also)
                is_same = answer.status == NOT_MODIFIED and question.etag
                if not is_fine and not is_same:
                    raise self.refusal(answer)
                try:
                    return await anyio.to_thread.run_sync(read, answer)
                except (ValueError, ContractError) as error:
                    raise _PassingError(self.name, f"broken answer: {error}") from None
        raise AssertionError  # there is an attempt, and it returns or raises

    def _pause_after(self, error: Exception) -> bool | float:
        """Decide whether to try again, and after how many seconds."""
        if not isinstance(error, _PassingError):
            return False
        wait = error.retry_after
        return wait is None or (wait <= self._max_wait and wait)

    def refusal(self, answer: Answer) -> SourceError:
        """Translate a status; the token is not in it, whatever the server says."""
        status, message = answer.status, answer.message
        if self._token:
            message = message.replace(self._token, "***")
        said = f"status {status}" + (f" ({message})" if message else "")
        wait = answer.retry_after
        if status >= 500 or status == 408:  # noqa: PLR2004 - statuses
            return _PassingError(self.name, said, retry_after=wait)
        if status in (403, 429) and wait is not None:
            return _PassingError(self.name, f"rate limit, {said}", retry_after=wait)
        return SourceError(self.name, f"{said}{_REMEDIES.get(status, '')}")

    async def _follow(self, client: Client, question: Question) -> Answer:
        """Ask; follow redirects to the same host, of an archive to its neighbour."""
        url = httpx2.URL(f"{self._base}/repos/{self._repo}{question.path}")
        for _ in range(REDIRECTS):
            answer = await self._send(client, question, url)
            if answer.status not in REDIRECTED[question.method]:
                return answer
            try:
                url = url.join(answer.headers.get("location", ""))
            except httpx2.InvalidURL:
                break
            neighbour = f"codeload.{self._base.host.removeprefix('api.')}"
            is_near = question.is_archive and url.host == neighbour
            is_known = is_near or _host_of(url) == _host_of(self._base)
            if not is_known or url.scheme != self._base.scheme:
                reason = f"it redirects to {url.scheme}://{url.host}, not followed"
                raise SourceError(self.name, reason)
        raise SourceError(self.name, "it redirects again and again, or to no address")

    async def _send(
        self, client: Client, question: Question, url: httpx2.URL
    ) -> Answer:
        """Send one request; an answer that stops arriving or is too long raises."""
        headers = {
            "Accept": question.accept,
            "Accept-Encoding": "identity",
            "User-Agent": "bls-agent",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        if question.etag:
            headers["If-None-Match"] = question.etag
        if self._token and _host_of(url) == _host_of(self._base):
            headers["Authorization"] = f"Bearer {self._token}"
        request = client.build_request(
            question.method, url, headers=headers, content=question.body
        )
        request.url = _QuietURL(request.url)
        try:
            return await self._receive(client, request, question.limit)
        except (TimeoutError, httpx2.TimeoutException):
            reason = f"no complete answer within {self._timeout:g} s"
            raise _PassingError(self.name, reason) from None
        except httpx2.TransportError as error:
            reason = f"{type(error).__name__}: {error}"
            raise _PassingError(self.name, reason) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise SourceError(self.name, type(error).__name__) from None

    async def _receive(
        self, client: Client, request: httpx2.Request, limit: int
    ) -> Answer:
        body = bytearray()
        with anyio.fail_after(self._timeout) as scope:
            end = scope.deadline
            response = await client.send(request, stream=True)
            try:
                if response.headers.get("content-encoding", "identity") != "identity":
                    reason = "the answer is compressed, which was not asked for"
                    raise SourceError(self.name, reason)
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > limit:
                        reason = f"an answer has more than {limit:,} bytes"
                        raise SourceError(self.name, reason)
                    scope.deadline = end + len(body) / SLOWEST
            finally:
                with anyio.CancelScope(shield=True):
                    await response.aclose()
        return Answer(response.status_code, response.headers, bytes(body))


def _check_base_url(text: str, *, has_token: bool) -> httpx2.URL:
    try:
        url = httpx2.URL(text.rstrip("/"))
    except httpx2.InvalidURL:
        url = httpx2.URL("")
    if url.userinfo or url.query or url.fragment:
        rule = "it has no user, query or fragment; the token is passed as token="
        raise ConfigurationError("base_url", "***", rule)
    is_safe = url.scheme == "https" or not has_token or url.host in LOOPBACK
    if url.scheme not in ("https", "http") or not url.host or not is_safe:
        rule = "it is an address that begins with https://"
        raise ConfigurationError("base_url", text, rule)
    return url


def _host_of(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
