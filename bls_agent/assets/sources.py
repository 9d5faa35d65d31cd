"""The methods of every source of manifests, and the source that reads a folder."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import anyio
import anyio.to_thread

from bls_agent.core.checks import check_text
from bls_agent.core.errors import ConfigurationError, SourceError

SHA1: Final = 40  # digits
MOST_REFS: Final = 2**25  # bytes that are read of Git's file packed-refs
MOST_BYTES: Final = 2**18  # bytes of the largest manifest
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
UNFIT_PARTS: Final = frozenset({"", ".", ".."})

FULL_SHA: Final = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_REF: Final = re.compile(r"ref: (refs/(?!.*\.\.)[^\x00-\x20\x7f]+)")
_BRANCH: Final = re.compile(
    r"(?![-./])(?!.*(\.\.|//|@\{|/$|\.lock$))[^\x00-\x20\x7f~^:?*\[\\]{1,255}"
)


@dataclass(frozen=True, slots=True)
class Head:
    """The state of a source at one moment.

    Attributes:
        commit: SHA of the newest commit, which Redis stores as ``last_commit_sha``.
        content: Hash of the files if the commit alone does not identify them, or
            ``""``.
    """

    commit: str
    content: str = ""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a commit.

    Attributes:
        path: Path relative to the repository's root, written with ``/``.
        sha: SHA of the content, as Git computes it for a blob.
        size: Size in bytes.
        is_link: Whether the file is a symlink. Symlinks are reported, never followed.
    """

    path: str
    sha: str
    size: int
    is_link: bool = False


class Source(Protocol):
    """The methods that a synchronisation calls on a source.

    Only one task at a time uses a source. Every method raises ``SourceError`` if the
    source does not answer, refuses the request, or sends an incomplete answer.
    """

    @property
    def name(self) -> str:
        """The location of the source, for people and without credentials."""
        ...

    @property
    def base_path(self) -> str:
        """The only folder that is read, relative to the root, or ``""`` for all."""
        ...

    async def head(self) -> Head:
        """Return the current state of the source, if possible with one request."""
        ...

    async def tree(self, head: Head) -> Sequence[SourceFile]:
        """Return all YAML files of exactly this commit below :attr:`base_path`."""
        ...

    def fetch(
        self, head: Head, files: Sequence[SourceFile]
    ) -> AsyncGenerator[tuple[SourceFile, bytes | SourceError]]:
        """Yield the contents of some files of exactly this commit, in any order.

        If a file cannot be read, its error is yielded instead of the content, and the
        other files follow. The caller compares contents with :attr:`SourceFile.sha`.
        """
        ...

    async def aclose(self) -> None:
        """Close all connections. The next call opens new ones."""
        ...


def blob_sha(content: bytes, *, like: str = "") -> str:
    """Return the SHA of a file's content, as Git computes it for a blob.

    The algorithm is SHA-256 if ``like`` has more than 40 digits, otherwise SHA-1.
    """
    kind = hashlib.sha256 if len(like) > SHA1 else hashlib.sha1
    digest = kind(b"blob %d\0" % len(content), usedforsecurity=False)
    digest.update(content)
    return digest.hexdigest()


class DirectorySource:
    """A folder of this machine, which may be a checkout of a Git repository.

    The commit is the checkout's HEAD, or a digest of all YAML files if the folder is no
    checkout. Edits are synchronised even if they are not committed. Hidden files and
    folders are ignored, and symlinks are not followed.

    Args:
        path: The root of the repository, to which all paths are relative.
        base_path: The only folder below ``path`` that is read.

    Raises:
        ConfigurationError: The folder does not exist, or is not inside of ``path``.
    """

    def __init__(self, path: str | os.PathLike[str], *, base_path: str = "") -> None:
        self._root = Path(path).absolute()
        self.base_path: str = check_base_path(base_path)
        folder = (self._root / self.base_path).resolve()
        if not folder.is_dir() or not folder.is_relative_to(self._root.resolve()):
            rule = "a folder that exists, and base_path one inside of it"
            raise ConfigurationError("path", str(self._root / self.base_path), rule)
        self._listed = Head(""), list[SourceFile]()

    @property
    def name(self) -> str:
        """The absolute path of the root."""
        return str(self._root)

    async def head(self) -> Head:
        """Read all YAML files, and remember their SHAs for :meth:`tree`.

        Raises:
            SourceError: The folder or a file cannot be read.
        """
        self._listed = await anyio.to_thread.run_sync(self._list_files)
        return self._listed[0]

    async def tree(self, head: Head) -> Sequence[SourceFile]:
        """Return the files that the last call of :meth:`head` found.

        Raises:
            SourceError: ``head`` differs from the result of that call.
        """
        if head != self._listed[0]:
            raise SourceError(self.name, "the folder was read again since")
        return self._listed[1]

    async def fetch(
        self, head: Head, files: Sequence[SourceFile]
    ) -> AsyncGenerator[tuple[SourceFile, bytes | SourceError]]:
        """Yield the current contents, which may have changed since :meth:`head`."""
        del head  # a folder keeps no earlier contents
        for file in files:
            try:
                content = await anyio.to_thread.run_sync(self._read, file.path)
            except OSError as error:
                yield file, self._error(file.path, error)
            else:
                yield file, content

    async def aclose(self) -> None:
        """Do nothing, because no file stays open."""

    def _list_files(self) -> tuple[Head, list[SourceFile]]:
        try:
            files = sorted(self._walk(), key=lambda file: file.path)
            commit = _read_head(self._root)
        except OSError as error:
            raise self._error(str(error.filename), error) from None
        lines = (f"{file.sha} {file.size} {file.path}\n" for file in files)
        content = blob_sha("".join(lines).encode("utf-8", "surrogateescape"))
        return (Head(commit, content) if commit else Head(content)), files

    def _error(self, path: str, error: OSError) -> SourceError:
        return SourceError(self.name, f"{show_path(path)}: {error.strerror}")

    def _walk(self) -> Iterator[SourceFile]:
        folders = [self.base_path]
        while folders:
            folder = folders.pop()
            with os.scandir(self._root / folder) as entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}".lstrip("/")
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(path)
                    elif is_manifest_path(path):
                        yield self._stat(path, entry)

    def _stat(self, path: str, entry: os.DirEntry[str]) -> SourceFile:
        if entry.is_symlink():
            target = os.fsencode(Path(entry.path).readlink())
            return SourceFile(path, blob_sha(target), len(target), is_link=True)
        size = entry.stat(follow_symlinks=False).st_size
        return SourceFile(path, blob_sha(self._read(path)), size)

    def _read(self, path: str) -> bytes:
        return _read_file(self._root / path, MOST_BYTES)


def _read_file(path: Path, limit: int) -> bytes:
    """Read at most ``limit`` bytes. Raises OSError for a link, a pipe or a device."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(os.open(path, flags), "rb") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        return file.read(limit)


def show_path(path: str) -> str:
    r"""Return a path as valid text: a byte that is no UTF-8 is written ``\udcff``."""
    return path.encode("utf-8", "backslashreplace").decode()


def is_manifest_path(path: str) -> bool:
    """Return whether a path names a YAML file, and no part of the path is hidden."""
    hidden = any(part.startswith(".") and part.strip(".") for part in path.split("/"))
    return path.lower().endswith((".yaml", ".yml")) and not hidden


def check_branch(branch: str) -> str:
    """Return a checked name of a branch. ``""`` means the default branch.

    Raises ConfigurationError if the name is invalid.
    """
    if branch and not _BRANCH.fullmatch(branch):
        rule = "it is the name of a branch, such as main"
        raise ConfigurationError("branch", branch, rule)
    return branch


def check_base_path(path: str) -> str:
    """Return the checked path of a folder, without slashes at both ends.

    Raises ConfigurationError if the path leaves the root, is not written with ``/``, or
    has a hidden part, because hidden files are never read.
    """
    bare = check_text("base_path", path).strip("/")
    if bare and (UNFIT_PARTS & set(bare.split("/")) or {"\\", "\0"} & set(bare)):
        rule = "it is a folder below the root, written with '/'"
        raise ConfigurationError("base_path", path, rule)
    if any(part.startswith(".") for part in bare.split("/")):
        rule = "no part of it begins with '.', because hidden files are not read"
        raise ConfigurationError("base_path", path, rule)
    return bare


def _read_head(root: Path) -> str:
    """Return the commit of a checkout, or ``""`` if no commit is found.

    Only a SHA is returned, and only a ref below the Git folder is read. Otherwise an
    untrusted Git folder could copy the text of another file into Redis.
    """
    place = root / ".git"
    if place.is_file():  # a worktree, or a submodule
        place = root / _read_line(place).removeprefix("gitdir: ")
    head = _read_line(place / "HEAD")
    if name := _REF.fullmatch(head):
        common = place / _read_line(place / "commondir")
        ref = common / name[1]
        if not ref.resolve().is_relative_to(common.resolve()):
            return ""
        head = _read_line(ref) or _find_packed(common, name[1])
    return head if FULL_SHA.fullmatch(head) else ""


def _read_line(path: Path) -> str:
    """Return the text of a small file, or ``""`` if the file does not exist."""
    text = _read_file(path, MOST_BYTES) if path.is_file() else b""
    return text.decode("utf-8", "surrogateescape").strip()


def _find_packed(folder: Path, name: str) -> str:
    path = folder / "packed-refs"
    lines = _read_file(path, MOST_REFS).splitlines() if path.is_file() else []
    ending = f" {name}".encode()
    found = (line.split()[0] for line in lines if line.endswith(ending))
    return next(found, b"").decode("ascii", "replace")
