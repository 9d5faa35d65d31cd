"""A repository on GitHub as a source: read by commit, checked by SHA."""

from __future__ import annotations

import base64
import gzip
import io
import logging
import re
import tarfile
import zlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast
from urllib.parse import quote

from bls_agent.assets.github_api import (
    NOT_MODIFIED,
    RAW,
    SHA,
    Answer,
    Client,
    GitHubApi,
    Question,
)
from bls_agent.assets.manifest import AssetManifest, parse_manifest, path_fault
from bls_agent.assets.sources import (
    MOST_BYTES,
    Head,
    SourceFile,
    blob_sha,
    check_base_path,
    check_branch,
    is_manifest_path,
)
from bls_agent.core.codec import decode_object, encode
from bls_agent.core.errors import (
    ConfigurationError,
    MissingExtraError,
    SourceConflictError,
    SourceError,
)

try:
    from ruamel.yaml import YAML, scalarstring
except ModuleNotFoundError:
    raise MissingExtraError("assets", "publishing a manifest") from None

__all__ = ["GitHubSource"]

GITHUB: Final = "https://api.github.com"
MAX_ARCHIVE: Final = 64 * 2**20  # bytes
MAX_UNPACKED: Final = 512 * 2**20
ARCHIVE_FROM: Final = 20  # files: one archive is cheaper than so many requests
IN_A_ROW: Final = 3  # files that fail, after which the others are not asked for
NOT_FOUND: Final = 404
CONFLICT: Final = (409, 422)
NO_YAML: Final = "it ends in .yaml or .yml, and no part of it begins with a dot"

_SHA: Final = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Listing:
    """One list of files: paths below the folder that was asked for."""

    files: tuple[SourceFile, ...]
    folders: Mapping[str, str]
    truncated: bool


class GitHubSource:
    """A branch of a repository on GitHub, GitHub Enterprise or a mirror of its API.

    Asking for changes is one request, which counts against no limit while nothing has
    changed. Files are read by the commit whose SHA is recorded, and each content is
    compared with its own SHA. Twenty files or more come as one archive, fewer singly.

    Server errors, timeouts and torn answers are tried again, four times in all. A rate
    limit is waited for if it ends within ``max_wait``; otherwise the error says when it
    ends. Redirects are followed to the same host only; an archive may come from the
    host's neighbour ``codeload.``, which is not given the token.

    Args:
        repo: ``owner/name``.
        branch: Its name; ``""`` for the repository's default branch.
        token: For private repositories and for :meth:`publish`; needs the right to read
            (and write) contents. GitHub allows 5,000 requests an hour with a token, 60
            without. No text shows it.
        base_url: The address of the API; for GitHub Enterprise ``https://host/api/v3``.
        base_path: The only folder that is read; ``""`` for all.
        timeout: Seconds for one answer; a long one has more, by its bytes.
        max_wait: Seconds for which one request waits for the end of a rate limit.
        pause: Seconds before the second attempt; doubled for each one after it.

    Raises:
        ConfigurationError: An argument breaks its rule.
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
        self.repo, self.branch = repo, check_branch(branch)
        self.base_path = check_base_path(base_path)
        self._api = GitHubApi(
            repo,
            branch,
            token or "",
            base_url=base_url,
            timeout=timeout,
            max_wait=max_wait,
            pause=pause,
        )
        self._seen = "", ""  # the branch's ETag and commit

    def __repr__(self) -> str:
        return f"GitHubSource({self.name!r})"

    @property
    def name(self) -> str:
        """Host, repository and branch."""
        return self._api.name

    async def head(self) -> Head:
        """Ask for the commit of the branch, in one request.

        SourceError if there is no answer, no such branch, or no right to read it.
        """
        ref = f"heads/{self.branch}" if self.branch else "HEAD"
        path = f"/commits/{quote(ref)}"
        question = Question(path=path, accept=SHA, etag=self._seen[0])
        async with self._api.open() as client:
            told = await self._api.ask(client, question, _read_commit)
        self._seen = told or self._seen
        return Head(self._seen[1])

    async def tree(self, head: Head) -> Sequence[SourceFile]:
        """List the YAML files of a commit.

        SourceError if the list is not complete, or there is no such folder.
        """
        async with self._api.open() as client:
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

    async def _list(self, client: Client, sha: str, how: str = "") -> _Listing:
        question = Question(path=f"/git/trees/{sha}{how}")
        return await self._api.ask(client, question, _read_tree)

    async def fetch(
        self, head: Head, files: Sequence[SourceFile]
    ) -> AsyncGenerator[tuple[SourceFile, bytes | SourceError]]:
        """Give contents, each compared with its SHA.

        Once three files in a row have failed, or a rate limit does not end in time, the
        others come with the same error and are not asked for.
        """
        left = {file.path: file for file in files}
        content: bytes | SourceError = b""
        failed = 0  # in a row
        async with self._api.open() as client:
            if len(left) >= ARCHIVE_FROM:
                try:
                    found = await self._fetch_archive(client, head.commit, left)
                except SourceError as error:
                    logger.debug("%s; the files are read singly", error)
                    content, found = error, {}
                    failed = IN_A_ROW if error.retry_after is not None else 0
                for path, text in found.items():
                    yield left.pop(path), text
            for file in left.values():  # also files that an archive leaves out
                if failed < IN_A_ROW:
                    content = await self._fetch_blob(client, file)
                    is_limit = getattr(content, "retry_after", None) is not None
                    failed = IN_A_ROW if is_limit else failed + 1
                if isinstance(content, bytes):
                    failed = 0
                yield file, content

    async def _fetch_archive(
        self, client: Client, commit: str, files: Mapping[str, SourceFile]
    ) -> dict[str, bytes]:
        path = f"/tarball/{commit}"
        question = Question(path=path, accept="*/*", limit=MAX_ARCHIVE, is_archive=True)
        return await self._api.ask(
            client, question, lambda answer: _unpack(answer.body, files)
        )

    async def _fetch_blob(
        self, client: Client, file: SourceFile
    ) -> bytes | SourceError:
        def read(answer: Answer) -> bytes:
            if blob_sha(answer.body, like=file.sha) != file.sha:
                message = "the content has another SHA"
                raise ValueError(message)
            return answer.body

        path = f"/git/blobs/{file.sha}"
        question = Question(path=path, accept=RAW, limit=MOST_BYTES)
        try:
            return await self._api.ask(client, question, read)
        except SourceError as error:
            return error

    async def publish(
        self, manifest: AssetManifest, message: str, *, path: str = "", sha: str = ""
    ) -> SourceFile:
        """Write a manifest into the branch, as one commit.

        The file is written anew: comments in the old one are lost.

        Args:
            manifest: What to write.
            message: Of the commit.
            path: Where; default ``{base_path}/{category}s/{id}/manifest.yaml``. For an
                asset of the library its ``github_path``.
            sha: Of the file that is replaced, an asset's ``github_sha``; ``""`` for a
                new file.

        Returns:
            The file: its path and SHA are what ``AssetLibrary.save`` takes.

        Raises:
            SourceConflictError: The file has changed meanwhile, or is there already.
            SourceError: There is no right to write, no such branch, or no answer.
            ConfigurationError: The path breaks its rule.
        """
        folder = f"{self.base_path}/{manifest.category}s/{manifest.id}".lstrip("/")
        path = path or f"{folder}/manifest.yaml"
        if reason := path_fault(path) or ("" if is_manifest_path(path) else NO_YAML):
            raise ConfigurationError("path", path, reason)
        content = _write_yaml(manifest, path)
        body = {"message": message, "content": base64.b64encode(content).decode()}
        body |= {"branch": self.branch} if self.branch else {}
        body |= {"sha": sha} if sha else {}
        place = f"/contents/{quote(path)}"
        file = SourceFile(path, blob_sha(content, like=sha), len(content))
        write = Question(path=place, method="PUT", body=encode(body), also=CONFLICT)
        ref = f"?ref={quote(self.branch, safe='')}" if self.branch else ""
        read = Question(
            path=place + ref, accept=RAW, limit=MOST_BYTES, also=(NOT_FOUND,)
        )
        async with self._api.open() as client:
            answer = await self._api.ask(client, write, _as_it_is)
            if answer.status not in CONFLICT:
                return file
            there = await self._api.ask(client, read, _as_it_is)
        is_there = there.status != NOT_FOUND
        theirs = there.body if is_there else b""
        if theirs == content:  # a former attempt wrote it, and its answer was lost
            return file
        if sha == (blob_sha(theirs, like=sha) if is_there else ""):
            raise self._api.refusal(answer)
        raise SourceConflictError(self.name, path, ours=content, theirs=theirs)

    async def aclose(self) -> None:
        """Do nothing: no connection is open between two calls."""


def _as_it_is(answer: Answer) -> Answer:
    return answer


def _read_commit(answer: Answer) -> tuple[str, str] | None:
    """Give ETag and commit, or nothing if the branch has not moved."""
    if answer.status == NOT_MODIFIED:
        return None
    return answer.headers.get("etag", ""), _check_sha(answer.body.decode().strip())


def _check_sha(text: object) -> str:
    if not isinstance(text, str) or not _SHA.fullmatch(text):
        message = f"{str(text)[:80]!r} is no SHA"
        raise ValueError(message)
    return text


def _read_tree(answer: Answer) -> _Listing:
    """Read a list of files; one that does not say that it is complete is refused."""
    told = decode_object(answer.body)
    files: list[SourceFile] = []
    folders: dict[str, str] = {}
    try:
        for entry in told["tree"]:
            path, sha, kind = entry["path"], _check_sha(entry["sha"]), entry["type"]
            if kind == "tree":
                folders[path] = sha
            elif kind == "blob" and is_manifest_path(path):
                is_link = entry["mode"] == "120000"
                files.append(SourceFile(path, sha, int(entry["size"]), is_link))
        if not isinstance(told["truncated"], bool):
            raise TypeError  # noqa: TRY301 - handled like all that is missing
    except (KeyError, TypeError, AttributeError):
        message = "it is no list of files"
        raise ValueError(message) from None
    return _Listing(tuple(files), folders, told["truncated"])


class _Unpacked(gzip.GzipFile):
    """A stream that fails where it is longer than any archive of manifests."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > MAX_UNPACKED:
            message = f"unpacked it has more than {MAX_UNPACKED:,} bytes"
            raise ValueError(message)
        return super().read(size)


def _unpack(body: bytes, wanted: Mapping[str, SourceFile]) -> dict[str, bytes]:
    """Take files out of an archive, in memory.

    Stricter than the filter ``data`` of tarfile: only regular files that the commit
    lists, with the size and the SHA of that list. All else is skipped.
    """
    found: dict[str, bytes] = {}
    try:
        with (
            _Unpacked(fileobj=io.BytesIO(body)) as plain,
            tarfile.open(fileobj=plain, mode="r|", encoding="utf-8") as archive,
        ):
            while (member := archive.next()) is not None:
                cast("Any", archive).members.clear()  # they would add up
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


def _write_yaml(manifest: AssetManifest, path: str) -> bytes:
    """Write YAML that reads back as the same manifest, long texts as blocks."""
    data = manifest.model_dump(exclude_unset=True)
    stream, yaml = io.BytesIO(), cast("Any", YAML())  # which is not typed throughout
    cast("Any", scalarstring).walk_tree(data)
    yaml.dump(data, stream)
    if parse_manifest(stream.getvalue(), path) != manifest:
        rule = "it can be written as YAML and read again"
        raise ConfigurationError("manifest", manifest.id, rule)
    return stream.getvalue()
