"""Any Git server as a source: Git's own servers on loopback, whole or failing."""

from __future__ import annotations

import errno
import gc
import os
import socket
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bls_agent import ConfigurationError, SourceError
from bls_agent.assets import AssetSync, GitSource, Head
from bls_agent.assets.sources import blob_sha
from bls_agent.devserver import DevServer
from tests.assets.git_server import GitServer, git, serving_daemon, serving_http
from tests.assets.memory_source import manifest
from tests.harness import eventually

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="the servers of Git for Windows are other ones"
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    """A repository behind `git http-backend`."""
    with serving_http(tmp_path) as served:
        served.commit({"lib/a.yaml": manifest("a"), "b.yml": b"2", "r.md": b"3"})
        yield served


async def read(source: GitSource, head: Head | None = None) -> dict[str, Any]:
    """Everything the source gives, errors as text."""
    head = head or await source.head()
    found: dict[str, Any] = {}
    files = await source.tree(head)
    async for file, content in source.fetch(head, files):
        assert not isinstance(content, bytes) or blob_sha(content) == file.sha
        found[file.path] = content if isinstance(content, bytes) else str(content)
    return found


@pytest.mark.parametrize("serving", [serving_http, serving_daemon])
async def test_a_repository(tmp_path: Path, serving: Any) -> None:
    """Over HTTP and over Git's own port: the branch, the folder, the files, the links."""
    with serving(tmp_path) as server:
        first = server.commit({
            "lib/a.yaml": b"1", "lib/c/d.YML": b"4", "lib/l.yaml": Path("a.yaml"),
            "lib/big.yaml": b"x" * (2**20 + 1), "b.yaml": b"2", "lib/.h.yaml": b"5",
        })  # fmt: skip
        second = server.commit({"x.yaml": b"9"}, "feature/y")
        source = GitSource(server.url, base_path="lib")
        head = await source.head()
        assert head.commit == first
        files = {file.path: file for file in await source.tree(head)}
        assert set(files) == {
            "lib/a.yaml", "lib/c/d.YML", "lib/l.yaml", "lib/big.yaml"
        }  # fmt: skip
        assert files["lib/l.yaml"].is_link
        assert files["lib/big.yaml"].size == 2**20 + 1
        found = await read(source)
        assert found["lib/a.yaml"] == b"1"
        assert found["lib/c/d.YML"] == b"4"
        assert "was not downloaded" in found["lib/big.yaml"]
        other = GitSource(server.url, branch="feature/y")
        assert (await other.head()).commit == second
        assert await read(other) == {"x.yaml": b"9"}
        for one in (source, other):
            await one.aclose()


async def test_what_is_not_there(server: GitServer) -> None:
    """No branch, no folder, no repository, a commit that has gone: each says so."""
    with pytest.raises(SourceError, match="no branch 'gone'") as caught:
        await GitSource(server.url, branch="gone").head()
    assert str(caught.value).startswith(f"{server.url}#gone: ")
    for folder in ("gone", "b.yml", "b.yml/x"):
        with pytest.raises(SourceError, match=f"no folder '{folder}'"):
            await read(GitSource(server.url, base_path=folder))
    with pytest.raises(SourceError, match="no such repository"):
        await GitSource(server.url.replace("repo", "other")).head()
    source = GitSource(server.url)
    head = await source.head()
    server.commit({"n.yaml": b"new"})
    with pytest.raises(SourceError, match="moved meanwhile"):
        await source.tree(head)
    assert await read(source) == {"n.yaml": b"new"}


async def test_each_fault_is_an_error(server: GitServer) -> None:
    """Torn, late, refused, sent elsewhere, unreachable."""
    source = GitSource(server.url, timeout=0.3)
    for server.torn in (0.9, 0.5, 0.1):
        with pytest.raises(SourceError):
            await read(source)
    server.torn, server.status = 1.0, 500
    with pytest.raises(SourceError, match="500"):
        await source.head()
    server.status, server.headers = 302, {"Location": "http://127.0.0.1:1/x"}
    with pytest.raises(SourceError, match="302"):
        await source.head()
    server.status, server.wait = 0, 0.5
    with pytest.raises(SourceError, match="timed out"):
        await source.head()
    with pytest.raises(SourceError, match="refused"):
        await GitSource("http://127.0.0.1:1/r.git").head()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_server_that_says_nothing() -> None:
    """On Git's own port nothing but the deadline ends that; dulwich leaves its socket."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        mute = GitSource(f"git://127.0.0.1:{port}/r.git", timeout=0.01)
        with pytest.raises(SourceError, match="not done within"):
            await mute.head()
        assert mute._threads.stuck == 1
    await eventually(lambda: mute._threads.stuck == 0)
    gc.collect()


async def test_a_connection_that_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's error is told, not the limit of the whole call."""

    def connect(*_: object) -> None:
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    monkeypatch.setattr("dulwich.client.TCPGitClient._connect", connect)
    with pytest.raises(SourceError, match=r"TimeoutError: .*timed out"):
        await GitSource("git://127.0.0.1/r.git").head()


async def test_a_download_has_a_bound(
    server: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it the download is given up."""
    source = GitSource(server.url)
    monkeypatch.setattr("bls_agent.assets.git.MAX_DOWNLOAD", 100)
    with pytest.raises(SourceError, match="more than 100 bytes"):
        await read(source)


def commit_objects(server: GitServer, make: Callable[[Path], str]) -> None:
    """Commit a tree that is made of objects, without any files."""
    tree = make(server.bare)
    commit = git(server.bare, "commit-tree", "-m", "m", tree)
    git(server.bare, "update-ref", "refs/heads/main", commit)


def make_tree(folder: Path, *entries: str) -> str:
    return git(folder, "mktree", text="".join(f"{one}\n" for one in entries))


def make_blob(folder: Path, content: str) -> str:
    return git(folder, "hash-object", "-w", "--stdin", text=content)


async def test_one_content_with_many_names(server: GitServer) -> None:
    """It is read and kept once; too long for a manifest, it is not kept at all."""

    def make(folder: Path) -> str:
        long = make_blob(folder, "x" * 2**20)
        fit = make_blob(folder, "x" * 200_000)
        names = [f"100644 blob {long}\tl{n}.yaml" for n in range(1_000)]
        return make_tree(
            folder, *names, *(f"100644 blob {fit}\tf{n}.yaml" for n in range(1_000))
        )

    commit_objects(server, make)
    source = GitSource(server.url)
    head = await source.head()
    tracemalloc.start()
    try:
        files = await source.tree(head)
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(files) == 2_000
    assert kept < 5 * 2**20
    assert most < 40 * 2**20
    texts = [text async for _, text in source.fetch(head, files)]
    assert sum(isinstance(text, bytes) for text in texts) == 1_000


async def test_files_and_bytes_have_a_bound(
    server: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it the commit is refused."""
    for name, limit, said in (
        ("MAX_ENTRIES", 2, "more than 2 files and folders"),
        ("MAX_KEPT", 40, "more than 40 bytes in its YAML files"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"bls_agent.assets.git.{name}", limit)
            with pytest.raises(SourceError, match=said):
                await read(GitSource(server.url))


@pytest.mark.parametrize("leaf", ["x.yaml", "x.md"])
async def test_a_tree_that_unfolds_without_end(
    server: GitServer, leaf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few hundred bytes name 10^30 files: the commit is refused, and the thread ends."""

    def make(folder: Path) -> str:
        tree = make_tree(folder, f"100644 blob {make_blob(folder, 'x')}\t{leaf}")
        for _ in range(30):
            tree = make_tree(folder, *(f"040000 tree {tree}\t{n}" for n in range(10)))
        return tree

    commit_objects(server, make)
    with monkeypatch.context() as patch:
        patch.setattr("bls_agent.assets.git.MAX_ENTRIES", 2_000)
        with pytest.raises(SourceError, match="more than 2,000 files and folders"):
            await read(GitSource(server.url))
    late = GitSource(server.url)
    head = await late.head()
    monkeypatch.setattr("bls_agent.assets.git.MAX_ENTRIES", 10**9)
    monkeypatch.setattr("bls_agent.assets.git.LONGEST", 0.03)
    with pytest.raises(SourceError, match="not done within"):
        await late.tree(head)
    await eventually(lambda: late._threads.stuck == 0)


async def test_credentials(server: GitServer) -> None:
    """They open what is closed, and no text shows them."""
    server.password = "ge/heim@1"
    url = server.url.replace("http://", "http://u:{}@")
    source = GitSource(url.format("ge%2Fheim%401"), branch="main")
    assert await read(source) == {"lib/a.yaml": manifest("a"), "b.yml": b"2"}
    wrong = GitSource(url.format("fal%2Fsch"))
    with pytest.raises(SourceError, match="user or the token is wrong") as caught:
        await wrong.head()
    server.password, server.status = "", 503
    with pytest.raises(SourceError) as other:
        await source.head()
    said = [repr(source), repr(wrong), str(caught.value), str(other.value)]
    assert not any("heim" in text or "sch@" in text for text in said)


@pytest.mark.parametrize(
    "options",
    [
        {"url": "/srv/repo.git"}, {"url": "file:///srv/repo.git"}, {"url": "repo"},
        {"url": "https://"}, {"url": "https://-x/y"}, {"url": "ssh://-oProxy=x/y"},
        {"url": "-x@h:y"}, {"url": "http://u:geheim@h/r.git"}, {"url": "ext::sh -c x"},
        {"url": "https://h/r", "branch": "a..b"}, {"url": "https://h/r", "timeout": 0},
        {"url": "https://h/r", "base_path": "../x"}, {"url": "https://[x/r"},
    ],
)  # fmt: skip
def test_arguments(options: dict[str, Any]) -> None:
    """What cannot be is refused at once, without saying a secret."""
    with pytest.raises(ConfigurationError) as caught:
        GitSource(**options)
    assert "geheim" not in str(caught.value)


def test_what_is_allowed() -> None:
    """The ways in which Git's addresses are written."""
    for url in ("git@host.example:acme/a.git", "ssh://git@host/a.git", "https://h/a"):
        source = GitSource(url)
        assert source.branch == ""
        assert source.name == url  # the user git is no secret
    assert GitSource("https://token@h/a").name == "https://***@h/a"


async def test_through_a_synchronisation(
    server: GitServer, own_server: DevServer
) -> None:
    """Faults end as failed and delete nothing; the next run is complete."""
    many = {f"{n}.yaml": manifest(f"a{n}") for n in range(5)}
    server.commit(many)
    async with AssetSync(own_server.url, GitSource(server.url, timeout=1)) as sync:
        assert (await sync.run()).total == 5
        asked = len(server.asked)
        assert (await sync.run()).status == "unchanged"
        assert len(server.asked) - asked == 2
        last = server.commit({**many, "1.yaml": manifest("a1", "2.0.0")})
        for server.torn, server.status in ((0.5, 0), (1.0, 500), (1.0, 404)):
            assert (await sync.run()).status == "failed"
            assert len(await sync.library.list()) == 5
        server.status = 0
        report = await sync.run()
        assert (report.commit, report.updated) == (last, ("a1",))
