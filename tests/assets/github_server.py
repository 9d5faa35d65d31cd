"""A server on loopback that answers like GitHub, and that fails as it is told to."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

import orjson
from dulwich.index import commit_tree
from dulwich.object_store import MemoryObjectStore, iter_tree_contents
from dulwich.objects import Blob, Commit, ObjectID, Tree

from tests.http_server import HTTPServer, QuietHandler

REPO = "acme/assets"
LINK = 0o120000

Content: TypeAlias = "bytes | tuple[int, bytes]"  # with another mode than a file's
Fault: TypeAlias = "Callable[[_Handler], bool | None]"


def status(code: int, message: str = "", **headers: str) -> Fault:
    """Answer this instead; underscores in the names of headers are dashes."""

    def answer(handler: _Handler) -> None:
        body = orjson.dumps({"message": message})
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        handler.send(code, body, **names)

    return answer


def torn(part: float = 0.5) -> Fault:
    """Break off in the middle of the answer."""

    def answer(handler: _Handler) -> bool:
        handler.torn = part
        return True

    return answer


def slow(seconds: float) -> Fault:
    """Send nothing for a while."""

    def answer(handler: _Handler) -> bool:
        time.sleep(seconds)
        return True

    return answer


def body(content: bytes, **headers: str) -> Fault:
    """Answer something else, as if all was well."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler: handler.send(200, content, **names)


@dataclass
class GitHub:
    """What the server holds, what it is asked, and how it fails."""

    url: str
    branch: str = "main"
    token: str = ""
    cut_after: int = 1_000_000  # entries of a recursive list
    archive_at: str = ""  # another address
    leave_out: tuple[str, ...] = ()  # of archives
    store: MemoryObjectStore = field(default_factory=MemoryObjectStore)
    heads: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)
    faults: list[tuple[str, Fault]] = field(default_factory=list)

    def commit(self, files: Mapping[str, Content], branch: str = "main") -> str:
        """Let a branch hold these files alone, as after a forced push."""
        listed: list[Any] = []
        for path, content in files.items():
            mode, text = content if isinstance(content, tuple) else (0o100644, content)
            blob = Blob.from_string(text)
            self.store.add_object(blob)
            listed.append((path.encode(), blob.id, mode))
        commit = Commit()
        commit.tree = commit_tree(self.store, listed)
        commit.author = commit.committer = b"t <t@x>"
        commit.author_time = commit.commit_time = len(self.heads)
        commit.author_timezone = commit.commit_timezone = 0
        commit.message = b"m"
        self.store.add_object(commit)
        self.heads[branch] = commit.id.decode()
        return commit.id.decode()

    def fail(self, path: str, *faults: Fault) -> None:
        """Let the next requests whose path holds this text fail, one after the other."""
        self.faults += ((path, fault) for fault in faults)

    def paths(self) -> list[str]:
        """What was asked, without the repository."""
        return [path.removeprefix(f"/repos/{REPO}") for _, path, _ in self.asked]

    def tree_of(self, sha: str) -> Tree:
        """A tree, by its own SHA or by that of its commit."""
        found = self.store[ObjectID(sha.encode())]
        if isinstance(found, Commit):
            found = self.store[found.tree]
        assert isinstance(found, Tree)
        return found

    def files(self, branch: str = "main") -> dict[str, bytes]:
        """What the branch holds."""
        tree = self.tree_of(self.heads[branch])
        found = {}
        for entry in iter_tree_contents(self.store, tree.id):
            blob = self.store[entry.sha]
            assert isinstance(blob, Blob)
            found[entry.path.decode()] = blob.data
        return found

    def list_tree(self, sha: str, *, recursive: bool) -> dict[str, Any]:
        """What the endpoint for trees says."""
        tree = self.tree_of(sha)
        entries = (
            iter_tree_contents(self.store, tree.id, include_trees=True)
            if recursive
            else tree.iteritems()
        )
        told: list[dict[str, Any]] = []
        for entry in entries:
            if not entry.path:
                continue
            kind = "tree" if entry.mode == 0o40000 else "blob"
            one: dict[str, Any] = {
                "path": entry.path.decode(),
                "mode": f"{entry.mode:06o}",
                "type": kind,
                "sha": entry.sha.decode(),
            }
            if kind == "blob":
                one["size"] = len(self.store[entry.sha].as_raw_string())
            told.append(one)
        is_cut = recursive and len(told) > self.cut_after
        return {"sha": sha, "tree": told[: self.cut_after] if is_cut else told,
                "truncated": is_cut}  # fmt: skip

    def archive(self, commit: str) -> bytes:
        """All files of a commit below one folder."""
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w:gz") as archive:
            for entry in iter_tree_contents(self.store, self.tree_of(commit).id):
                if entry.path.decode() in self.leave_out:
                    continue
                member = tarfile.TarInfo(
                    f"acme-assets-{commit[:7]}/{entry.path.decode()}"
                )
                content = self.store[entry.sha].as_raw_string()
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return stream.getvalue()


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"
    github: GitHub
    torn: float | None = None

    def send(self, code: int, content: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        if code != 304:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.torn is not None:
            content = content[: int(len(content) * self.torn)]
            self.close_connection = True
        if code != 304:
            self.wfile.write(content)

    def answer(self) -> None:
        self.torn = None
        github, address = self.github, urlsplit(self.path)
        path = address.path
        github.asked.append((self.command, self.path, dict(self.headers.items())))
        for number, (text, fault) in enumerate(github.faults):
            if text in self.path:
                del github.faults[number]
                if not fault(self):
                    return
                break
        if path.startswith("/archive/"):
            self.send(200, github.archive(path.rpartition("/")[2]))
            return
        granted = self.headers.get("Authorization") == f"Bearer {github.token}"
        rest = path.partition(f"/repos/{REPO}/")[2]
        kind, _, name = rest.partition("/")
        if (github.token and not granted) or not rest:
            self.refuse(404)
        else:
            query = parse_qs(address.query)
            getattr(self, f"get_{kind}", lambda *_: self.refuse(404))(
                unquote(name), query
            )

    do_GET = answer  # noqa: N815 - names of the library

    def refuse(self, code: int, message: str = "Not Found") -> None:
        self.send(code, orjson.dumps({"message": message}))

    def get_commits(self, name: str, _: Any) -> None:
        branch = self.github.branch if name == "HEAD" else name.removeprefix("heads/")
        commit = self.github.heads.get(branch)
        if commit is None:
            self.refuse(422, f"No commit found for SHA: {name}")
            return
        assert self.headers["Accept"] == "application/vnd.github.sha"
        is_known = self.headers.get("If-None-Match") == f'W/"{commit}"'
        self.send(304 if is_known else 200, commit.encode(), ETag=f'W/"{commit}"')

    def get_git(self, name: str, query: Mapping[str, Any]) -> None:
        kind, _, sha = name.partition("/")
        if ObjectID(sha.encode()) not in self.github.store:
            self.refuse(404)
        elif kind == "blobs":
            self.send(200, self.github.store[ObjectID(sha.encode())].as_raw_string())
        else:
            told = self.github.list_tree(sha, recursive="recursive" in query)
            self.send(200, orjson.dumps(told))

    def get_tarball(self, commit: str, _: Any) -> None:
        base = self.github.archive_at or self.github.url
        self.send(302, b"", Location=f"{base}/archive/{commit}?token=secret-of-archive")


@contextmanager
def serving() -> Iterator[GitHub]:
    """Start a server with an empty repository."""

    class Handler(_Handler):
        pass

    with HTTPServer(Handler) as server:
        Handler.github = GitHub(server.url)
        yield Handler.github


def now(offset: float = 0.0) -> str:
    """A date as in a header."""
    return formatdate(time.time() + offset, usegmt=True)
