"""Reads manifests from a branch on any Git server (extra ``git``)."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, Final, TypeVar, cast
from urllib.parse import unquote, urlsplit

import anyio

from bls_agent.assets.sources import (
    LOOPBACK,
    MOST_BYTES,
    Head,
    SourceFile,
    check_base_path,
    check_branch,
    is_manifest_path,
)
from bls_agent.core.checks import check_seconds
from bls_agent.core.errors import ConfigurationError, MissingExtraError, SourceError
from bls_agent.core.redaction import mask_url
from bls_agent.runtime.threads import HandlerThreads

try:
    from dulwich.client import (
        GitClient,
        HTTPUnauthorized,
        default_urllib3_manager,
        get_transport_and_path,
    )
    from dulwich.errors import NotGitRepository, NotTreeError
    from dulwich.object_store import iter_tree_contents, tree_lookup_path
    from dulwich.objects import Blob, Commit, ObjectID
    from dulwich.refs import Ref
    from dulwich.repo import Repo
except ModuleNotFoundError:
    raise MissingExtraError("git", "reading from a Git server") from None

MAX_DOWNLOAD: Final = 512 * 2**20  # bytes
MAX_ENTRIES: Final = 200_000  # files and folders of a commit
MAX_KEPT: Final = 128 * 2**20  # bytes of paths and different contents
LONGEST: Final = 20  # one call may last this many times the timeout
SSH: Final = "ssh -o BatchMode=yes -o ConnectTimeout={0} -o ServerAliveInterval={0}"

_URL: Final = re.compile(
    r"(https?|git|ssh)://[^\s/-][^\s/]*/\S+|\w[\w.-]*@\w[\w.-]*:\S+"
)
_T = TypeVar("_T")


class GitSource:
    """A branch on any Git server, read over ``https://``, ``ssh://`` or ``git://``.

    A check for changes reads only the SHA of the branch's commit. If the commit has
    changed, its files are downloaded without history into a temporary folder. The
    folder is removed as soon as the files have been read. Contents of YAML files are
    kept in memory until they are fetched, and may not exceed 128 MiB. No API quota
    applies. The SHA of each content is checked.

    Credentials are part of the URL (``https://user:token@host/repo.git``) and appear in
    no message. SSH uses the keys and the configuration of this machine and does not
    prompt; ``GIT_SSH_COMMAND`` replaces the SSH command. Redirects are not followed.

    Args:
        url: URL of the repository, or ``user@host:path``.
        branch: Name of the branch; ``""`` for the server's default branch.
        base_path: The only folder that is read; ``""`` for all folders.
        timeout: Longest wait for an answer in seconds. A whole download may last twenty
            times as long.

    Raises:
        ConfigurationError: An argument is invalid.
    """

    def __init__(
        self, url: str, *, branch: str = "", base_path: str = "", timeout: float = 30.0
    ) -> None:
        self._url, self._password = url, _check_url(url)
        self.branch: str = check_branch(branch)
        self.base_path: str = check_base_path(base_path)
        self._ref = f"refs/heads/{branch}".encode() if branch else b"HEAD"
        self._timeout = check_seconds("timeout", timeout)
        self._threads = HandlerThreads()
        self._read: tuple[Head, dict[str, bytes]] = Head(""), {}  # contents by SHA

    def __repr__(self) -> str:
        return f"GitSource({self.name!r})"

    @property
    def name(self) -> str:
        """The URL with its credentials masked, and the branch."""
        return mask_url(self._url) + (f"#{self.branch}" if self.branch else "")

    async def head(self) -> Head:
        """Return the current commit of the branch.

        Raises:
            SourceError: The server does not answer, the server refuses the request, or
                the branch does not exist.
        """
        return Head(await self._call(self._ask_head))

    async def tree(self, head: Head) -> Sequence[SourceFile]:
        """Download the files of the commit, and return the list of its YAML files.

        Raises:
            SourceError: The download is incomplete, the branch has another commit by
                now, or the folder ``base_path`` does not exist.
        """
        download = partial(self._download, head.commit)
        files, contents = await self._call(download)
        self._read = head, contents
        return files

    async def fetch(
        self, head: Head, files: Sequence[SourceFile]
    ) -> AsyncGenerator[tuple[SourceFile, bytes | SourceError]]:
        """Yield the contents that :meth:`tree` has downloaded, and forget them."""
        (listed, contents), self._read = self._read, (Head(""), {})
        for file in files:
            found = contents.get(file.sha) if listed == head else None
            error = SourceError(self.name, f"{file.path}: it was not downloaded")
            yield file, error if found is None else found

    async def aclose(self) -> None:
        """Forget downloaded contents. No connection stays open between two calls."""
        self._read = Head(""), {}
        self._threads.close()

    async def _call(self, function: Callable[[Event], _T]) -> _T:
        """Run a blocking function in a thread, and turn every error into SourceError.

        The function gets an event, which is set when the caller stops waiting. The
        function should then end soon, because a thread cannot be cancelled.
        """
        longest, abandoned = self._timeout * LONGEST, Event()
        try:
            with anyio.move_on_after(longest):
                result: _T = await self._threads.run(partial(function, abandoned))
                return result
            reason = f"it was not done within {longest:g} s"
        except SourceError:
            raise
        except HTTPUnauthorized:
            reason = "the user or the token is wrong, or missing"
        except NotGitRepository:
            reason = "there is no such repository, or no right to read it"
        except Exception as error:  # noqa: BLE001 - incomplete data may raise any error
            reason = f"{type(error).__name__}: {error}"[:500]
        finally:
            abandoned.set()
        for secret in {self._password, unquote(self._password)} - {""}:
            reason = reason.replace(secret, "***")
        raise SourceError(self.name, reason)

    @contextmanager
    def _connect(self) -> Generator[tuple[GitClient, str]]:
        with ExitStack() as ends:
            pool = self._make_pool(ends) if self._url.startswith("http") else None
            seconds = max(1, round(self._timeout))
            yield get_transport_and_path(
                self._url,
                thin_packs=False,
                quiet=True,
                ssh_command=os.environ.get("GIT_SSH_COMMAND") or SSH.format(seconds),
                pool_manager=pool,
            )

    def _make_pool(self, ends: ExitStack) -> Any:
        """Make a connection pool that closes every response, even if dulwich raises."""
        make = cast("Any", default_urllib3_manager)
        pool = make(None, base_url=self._url, timeout=self._timeout)
        pool.connection_pool_kw["retries"] = False  # also forbids redirects
        request = pool.request

        def remember(*words: Any, **options: Any) -> Any:
            answer = request(*words, **options)
            ends.callback(answer.close)
            return answer

        pool.request = remember
        ends.callback(pool.clear)
        return pool

    def _ask_head(self, _abandoned: Event) -> str:
        with self._connect() as (client, path):
            refs = client.get_refs(path.encode(), ref_prefix=[self._ref]).refs
        commit = refs.get(Ref(self._ref))
        if commit is None:
            reason = f"there is no branch {self.branch or 'HEAD'!r}"
            raise SourceError(self.name, reason)
        return commit.decode()

    def _download(
        self, commit: str, abandoned: Event
    ) -> tuple[list[SourceFile], dict[str, bytes]]:
        wanted = ObjectID(commit.encode())

        def choose(refs: Any, depth: int | None = None) -> list[ObjectID]:  # noqa: ARG001 - dulwich passes it
            if wanted not in refs.values():
                reason = "the branch has moved meanwhile: synchronise again"
                raise SourceError(self.name, reason)
            return [wanted]

        with (
            TemporaryDirectory(prefix="bls-agent-") as folder,
            Repo.init_bare(folder) as repo,
            self._connect() as (client, path),
        ):
            pack, keep, give_up = repo.object_store.add_pack()

            def take(data: bytes) -> int:
                self._check(pack.tell(), MAX_DOWNLOAD, "bytes", abandoned)
                return pack.write(data)

            walker, prefix = repo.get_graph_walker(), [self._ref]
            try:
                client.fetch_pack(
                    path, choose, walker, take, depth=1, ref_prefix=prefix
                )
            except BaseException:
                give_up()
                raise
            keep()
            return self._read_files(repo, wanted, abandoned)

    def _check(self, size: int, limit: int, unit: str, abandoned: Event) -> None:
        if size > limit or abandoned.is_set():
            raise SourceError(self.name, f"it has more than {limit:,} {unit}")

    def _read_files(
        self, repo: Repo, commit: ObjectID, abandoned: Event
    ) -> tuple[list[SourceFile], dict[str, bytes]]:
        """Return the YAML files of a commit, and their contents by SHA.

        A missing object raises an error. Entries and bytes have limits, and each
        content is read once, because a small download can list a file a million times.
        """
        start = repo[commit]
        assert isinstance(start, Commit)  # noqa: S101 - a branch points to a commit
        tree, mode, prefix = start.tree, stat.S_IFDIR, ""
        if self.base_path:
            prefix = f"{self.base_path}/"
            with suppress(KeyError, NotTreeError):
                mode, tree = tree_lookup_path(
                    repo.__getitem__, tree, self.base_path.encode()
                )
            if tree == start.tree or not stat.S_ISDIR(mode):
                reason = f"no folder {self.base_path!r} in commit {commit.decode()}"
                raise SourceError(self.name, reason)
        files: list[SourceFile] = []
        contents: dict[str, bytes] = {}
        sizes: dict[str, int] = {}
        kept = 0
        entries = iter_tree_contents(repo.object_store, tree, include_trees=True)
        for number, one in enumerate(entries):
            self._check(number, MAX_ENTRIES, "files and folders", abandoned)
            path = prefix + (one.path or b"").decode("utf-8", "surrogateescape")
            mode, is_link = one.mode or 0, stat.S_ISLNK(one.mode or 0)
            if not is_manifest_path(path) or not (stat.S_ISREG(mode) or is_link):
                continue
            sha = (one.sha or b"").decode()
            if sha not in sizes:
                blob = repo[one.sha or b""]
                assert isinstance(blob, Blob)  # noqa: S101 - its mode is a file's
                sizes[sha] = blob.raw_length()
                if sizes[sha] <= MOST_BYTES:
                    contents[sha] = blob.data
                    kept += sizes[sha]
            kept += len(path)
            self._check(kept, MAX_KEPT, "bytes in its YAML files", abandoned)
            files.append(SourceFile(path, sha, sizes[sha], is_link))
        return files, contents


def _check_url(url: str) -> str:
    """Check the URL of a Git server. Return its password, still percent-encoded."""
    rule = "it is written https://host/repo.git, ssh://user@host/repo.git or user@host:path"
    try:
        parts = urlsplit(url)
        password, host = parts.password or "", parts.hostname
    except ValueError:
        password, host, url = "", None, ""
    if not _URL.fullmatch(url):
        remedy = "For a folder of this machine use DirectorySource."
        raise ConfigurationError("url", mask_url(url), rule, remedy)
    if password and not url.startswith("https:") and host not in LOOPBACK:
        rule = "a password is sent over https:// only"
        raise ConfigurationError("url", mask_url(url), rule)
    return password
