"""Reads manifests from a branch of a repository on GitHub."""

from __future__ import annotations

import gzip
import io
import logging
import re
import tarfile
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import cache, partial
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote

import anyio
import anyio.to_thread

from bls_agent.assets.sources import (
    FULL_SHA,
    LOOPBACK,
    MOST_BYTES,
    Head,
    SourceFile,
    blob_sha,
    check_base_path,
    check_branch,
    is_manifest_path,
)
from bls_agent.core.checks import check_seconds
from bls_agent.core.codec import decode_object
from bls_agent.core.errors import (
    ConfigurationError,
    ContractError,
    MissingExtraError,
    SourceError,
)

try:
    import httpx2
except ModuleNotFoundError:
    raise MissingExtraError("assets", "reading from GitHub") from None

GITHUB: Final = "https://api.github.com"
MAX_ARCHIVE: Final = 64 * 2**20  # bytes
MAX_UNPACKED: Final = 512 * 2**20
ARCHIVE_FROM: Final = 20  # files; from this number on, one archive is downloaded
IN_A_ROW: Final = 3  # failed files in a row, after which no other file is requested
MAX_JSON: Final = 32 * 2**20  # bytes; GitHub truncates its lists at 7 MB
ATTEMPTS: Final = 4
REDIRECTS: Final = 5
SLOWEST: Final = 2_000  # bytes a second; a slower answer times out
DEFAULT_WAIT: Final = 60.0  # seconds, as GitHub advises if an answer has no time
OK: Final = 200
NOT_MODIFIED: Final = 304
REDIRECTED: Final = (301, 302, 307, 308)  # ``_follow`` checks the new address
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

_make_tls: Final = cache(httpx2.create_ssl_context)  # cached: a call takes 50 ms

logger: logging.Logger = logging.getLogger(__name__)


class _PassingError(SourceError):
    """A failure after which another attempt may succeed, perhaps after a wait."""


class _QuietURL(httpx2.URL):
    """A URL that hides its query in logs, because an archive's query is a secret."""

    def __str__(self) -> str:
        return super().__str__().partition("?")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    path: str
    accept: str = JSON
    etag: str = ""
    limit: int = MAX_JSON
    is_archive: bool = False


@dataclass(frozen=True, slots=True)
class _Answer:
    """One complete answer of the server."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def message(self) -> str:
        """The field ``message`` of the server's JSON answer, or ``""``."""
        try:
            return str(decode_object(self.body).get("message", ""))[:200]
        except ContractError:
            return ""

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait until a rate limit ends, or ``None`` without a limit."""
        wait = self.headers.get("retry-after")
        if wait is not None:
            return float(wait) if _SECONDS.fullmatch(wait) else self._until(wait)
        if self.headers.get("x-ratelimit-remaining") == "0":
            return self._until(self.headers.get("x-ratelimit-reset", "")) + 1
        is_limit = self.status == 429 or "rate limit" in self.message.lower()  # noqa: PLR2004 - a status
        return DEFAULT_WAIT if is_limit else None

    def _until(self, time: str) -> float:
        try:
            end = float(time) if time.isdecimal() else _parse_date(time)
            return max(0.0, end - _parse_date(self.headers.get("date", "")))
        except ValueError:
            return DEFAULT_WAIT


def _parse_date(text: str) -> float:
    return parsedate_to_datetime(text).timestamp()


@dataclass(frozen=True, slots=True)
class _Listing:
    """The files and folders of one Git tree. Paths are relative to this tree."""

    files: tuple[SourceFile, ...]
    folders: Mapping[str, str]
    truncated: bool


class GitHubSource:
    """A branch of a repository on GitHub, GitHub Enterprise or a server with this API.

    A check for changes sends one request. If nothing has changed, GitHub does not count
    this request against the rate limit of a token. Without a token, GitHub counts every
    request. All files are read from the commit that the check has returned, and the SHA
    of each content is checked. Twenty or more files are downloaded as one archive,
    fewer files one by one.

    After a server error, a timeout or an incomplete answer the request is sent again,
    at most four times in all. If a rate limit ends within ``max_wait``, the source
    waits. Otherwise the source raises an error whose ``retry_after`` is the number of
    seconds until the rate limit ends. Redirects are followed to the same host only. An
    archive may also come from the host ``codeload.…``, which does not get the token.

    Args:
        repo: ``owner/name``.
        branch: Name of the branch; ``""`` for the repository's default branch.
        token: Token for private repositories, with the right to read contents. GitHub
            allows 5,000 requests an hour with a token, 60 without. No message shows the
            token.
        base_url: The address of the API; for GitHub Enterprise ``https://host/api/v3``.
        base_path: The only folder that is read; ``""`` for all folders.
        timeout: Deadline of one answer in seconds. Each 2,000 bytes received extend the
            deadline by one second.
        max_wait: Longest time in seconds that one request waits for a rate limit to
            end.
        pause: Seconds before the second attempt. Each further pause is twice as long.

    Raises:
        ConfigurationError: An argument is invalid.
    """

    def __init__(
        self,
        repo: str,
        *,
        branch: str = "",
        token: str | None = None,
        base_url: str = GITHUB,
        base_path: str = "",
        timeout: float = 30.0,
        max_wait: float = 60.0,
        pause: float = 0.5,
    ) -> None:
        self.repo: str = repo
        self.branch: str = check_branch(branch)
        self.base_path: str = check_base_path(base_path)
        if not _REPO.fullmatch(repo) or repo.endswith(("/.", "/..")):
            raise ConfigurationError("repo", repo, "it is written owner/name")
        self._token = token or ""
        if not re.fullmatch("[!-~]*", self._token):
            rule = "a token is printable ASCII without blanks"
            raise ConfigurationError("token", "***", rule)
        self._base = _check_base_url(base_url, has_token=bool(token))
        self._timeout = check_seconds("timeout", timeout)
        self._max_wait = check_seconds("max_wait", max_wait)
        self._pause = check_seconds("pause", pause)
        self._etag = self._commit = ""  # of the last answer about the branch

    def __repr__(self) -> str:
        return f"GitHubSource({self.name!r})"

    @property
    def name(self) -> str:
        """Host, repository and branch."""
        host = self._base.netloc.decode().removeprefix("api.")
        return f"{host}/{self.repo}" + (f"@{self.branch}" if self.branch else "")

    async def head(self) -> Head:
        """Return the current commit of the branch, with one request.

        Raises:
            SourceError: The server does not answer, the server refuses the request, or
                the branch does not exist.
        """
        ref = f"heads/{self.branch}" if self.branch else "HEAD"
        path = f"/commits/{quote(ref)}"
        question = _Question(path=path, accept=SHA, etag=self._etag)
        async with self._open() as client:
            moved = await self._ask(client, question, _read_commit)
        if moved is not None:
            self._etag, self._commit = moved
        return Head(self._commit)

    async def tree(self, head: Head) -> Sequence[SourceFile]:
        """Return the YAML files of a commit.

        Raises:
            SourceError: The list is incomplete, or the folder ``base_path`` does not
                exist.
        """
        async with self._open() as client:
            start, folder = head.commit, ""
            for part in filter(None, self.base_path.split("/")):
                folders = (await self._list(client, start)).folders
                if part not in folders:
                    reason = f"no folder {self.base_path!r} in commit {head.commit}"
                    raise SourceError(self.name, reason)
                start, folder = folders[part], f"{folder}{part}/"
            listed = await self._list(client, start, "?recursive=1")
        if listed.truncated:
            reason = "the list of its files is too long: pass base_path="
            raise SourceError(self.name, reason)
        return [replace(one, path=folder + one.path) for one in listed.files]

    async def _list(
        self, client: httpx2.AsyncClient, sha: str, how: str = ""
    ) -> _Listing:
        question = _Question(path=f"/git/trees/{sha}{how}")
        return await self._ask(client, question, _read_tree)

    async def fetch(
        self, head: Head, files: Sequence[SourceFile]
    ) -> AsyncGenerator[tuple[SourceFile, bytes | SourceError]]:
        """Yield each file with its content, whose SHA is checked, or with its error.

        After three failed files in a row, or if a rate limit does not end in time, no
        more requests are sent. All other files are yielded with the last error.
        """
        left = {file.path: file for file in files}
        whole = _Question(
            path=f"/tarball/{head.commit}",
            accept="*/*",
            limit=MAX_ARCHIVE,
            is_archive=True,
        )
        content: bytes | SourceError = b""
        failed = 0  # how many files in a row have failed
        async with self._open() as client:
            if len(left) >= ARCHIVE_FROM:
                try:
                    found = await self._ask(client, whole, partial(_unpack, left))
                except SourceError as error:
                    logger.debug("%s; the files are read singly", error)
                    content, found = error, {}
                    failed = IN_A_ROW if error.retry_after is not None else 0
                for path, text in found.items():
                    yield left.pop(path), text
            for file in left.values():  # also files that the archive does not contain
                if failed < IN_A_ROW:
                    content = await self._fetch_blob(client, file)
                    is_limit = getattr(content, "retry_after", None) is not None
                    failed = IN_A_ROW if is_limit else failed + 1
                if isinstance(content, bytes):
                    failed = 0
                yield file, content

    async def _fetch_blob(
        self, client: httpx2.AsyncClient, file: SourceFile
    ) -> bytes | SourceError:
        def read(answer: _Answer) -> bytes:
            if blob_sha(answer.body, like=file.sha) != file.sha:
                message = "the content has another SHA"
                raise ValueError(message)
            return answer.body

        path = f"/git/blobs/{file.sha}"
        question = _Question(path=path, accept=RAW, limit=MOST_BYTES)
        try:
            return await self._ask(client, question, read)
        except SourceError as error:
            return error

    async def aclose(self) -> None:
        """Do nothing, because no connection stays open between two calls."""

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[httpx2.AsyncClient]:
        """Open connections for one call, so that no other event loop uses them."""
        tls = await anyio.to_thread.run_sync(_make_tls)
        async with httpx2.AsyncClient(verify=tls, timeout=self._timeout) as client:
            yield client

    async def _ask(
        self,
        client: httpx2.AsyncClient,
        question: _Question,
        read: Callable[[_Answer], _T],
    ) -> _T:
        """Send a request until its answer can be read, at most four times."""
        for attempt in range(ATTEMPTS):
            try:
                return await self._ask_once(client, question, read)
            except _PassingError as error:
                wait = error.retry_after
                if attempt + 1 == ATTEMPTS or (wait or 0.0) > self._max_wait:
                    raise
            await anyio.sleep(self._pause * 2**attempt if wait is None else wait)
        raise AssertionError  # the last attempt returns or raises

    async def _ask_once(
        self,
        client: httpx2.AsyncClient,
        question: _Question,
        read: Callable[[_Answer], _T],
    ) -> _T:
        answer = await self._follow(client, question)
        is_same = answer.status == NOT_MODIFIED and question.etag
        if answer.status != OK and not is_same:
            raise self._refusal(answer)
        try:
            return await anyio.to_thread.run_sync(read, answer)
        except (ValueError, ContractError) as error:
            raise _PassingError(self.name, f"broken answer: {error}") from None

    def _refusal(self, answer: _Answer) -> SourceError:
        """Return the error for a status. Remove the token from the server's message."""
        status, message = answer.status, answer.message
        if self._token:
            message = message.replace(self._token, "***")
        reason = f"status {status}" + (f" ({message})" if message else "")
        wait = answer.retry_after
        if status >= 500 or status == 408:  # noqa: PLR2004 - statuses
            return _PassingError(self.name, reason, retry_after=wait)
        if status in (403, 429) and wait is not None:
            return _PassingError(self.name, f"rate limit, {reason}", retry_after=wait)
        return SourceError(self.name, f"{reason}{_REMEDIES.get(status, '')}")

    async def _follow(self, client: httpx2.AsyncClient, question: _Question) -> _Answer:
        """Send a request, and follow redirects to the same host.

        The redirect of an archive may also lead to the host ``codeload.…``.
        """
        url = httpx2.URL(f"{self._base}/repos/{self.repo}{question.path}")
        for _ in range(REDIRECTS):
            answer = await self._send(client, question, url)
            if answer.status not in REDIRECTED:
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
        self, client: httpx2.AsyncClient, question: _Question, url: httpx2.URL
    ) -> _Answer:
        """Send one request. Raises SourceError if the answer is cut off or too long."""
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
        request = client.build_request("GET", url, headers=headers)
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
        self, client: httpx2.AsyncClient, request: httpx2.Request, limit: int
    ) -> _Answer:
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
        return _Answer(response.status_code, response.headers, bytes(body))


def _read_commit(answer: _Answer) -> tuple[str, str] | None:
    """Return ETag and commit, or ``None`` if the commit has not changed."""
    if answer.status == NOT_MODIFIED:
        return None
    etag = answer.headers.get("etag", "")
    commit = _check_sha(answer.body.decode().strip())
    return etag if etag.isascii() else "", commit  # headers of a request are ASCII


def _check_sha(text: object) -> str:
    if not isinstance(text, str) or not FULL_SHA.fullmatch(text):
        message = f"{str(text)[:80]!r} is no SHA"
        raise ValueError(message)
    return text


def _read_tree(answer: _Answer) -> _Listing:
    """Read a list of files. Raises ValueError if a field is missing or invalid."""
    listing = decode_object(answer.body)
    files: list[SourceFile] = []
    folders: dict[str, str] = {}
    try:
        for entry in listing["tree"]:
            path, sha, kind = entry["path"], _check_sha(entry["sha"]), entry["type"]
            if kind == "tree":
                folders[path] = sha
            elif kind == "blob" and is_manifest_path(path):
                is_link = entry["mode"] == "120000"
                files.append(SourceFile(path, sha, int(entry["size"]), is_link))
        if not isinstance(listing["truncated"], bool):
            raise TypeError  # noqa: TRY301 - handled like a missing field
    except (KeyError, TypeError, AttributeError):
        message = "it is no list of files"
        raise ValueError(message) from None
    return _Listing(tuple(files), folders, listing["truncated"])


class _Unpacked(gzip.GzipFile):
    """An unpacked stream that raises ValueError after ``MAX_UNPACKED`` bytes."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > MAX_UNPACKED:
            message = f"unpacked it has more than {MAX_UNPACKED:,} bytes"
            raise ValueError(message)
        return super().read(size)


def _unpack(wanted: Mapping[str, SourceFile], answer: _Answer) -> dict[str, bytes]:
    """Return the contents of wanted files in an archive, unpacked in memory.

    This is stricter than the filter ``data`` of tarfile: only wanted regular files with
    the listed size and SHA are returned, and everything else is skipped.
    """
    found: dict[str, bytes] = {}
    try:
        with (
            _Unpacked(fileobj=io.BytesIO(answer.body)) as plain,
            tarfile.open(fileobj=plain, mode="r|", encoding="utf-8") as archive,
        ):
            while (member := archive.next()) is not None:
                cast("Any", archive).members.clear()  # or all members stay in memory
                file = wanted.get(member.name.partition("/")[2])
                if file is None or not member.isreg() or member.size != file.size:
                    continue
                stream = archive.extractfile(member)
                content = stream.read() if stream else b""
                if blob_sha(content, like=file.sha) == file.sha:
                    found[file.path] = content
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ValueError(str(error)) from None
    return found


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
