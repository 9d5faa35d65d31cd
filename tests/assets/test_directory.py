"""A folder as a source: what Git would say of it, and nothing from outside of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from bls_agent import ConfigurationError, SourceError
from bls_agent.assets import DirectorySource, Head
from bls_agent.assets.sources import blob_sha
from tests.assets.git_server import git


async def read(source: DirectorySource) -> dict[str, bytes | str]:
    """Everything the source gives, errors as text."""
    head = await source.head()
    files = await source.tree(head)
    found: dict[str, bytes | str] = {}
    async for file, content in source.fetch(head, files):
        if isinstance(content, bytes):
            assert file.sha == blob_sha(content)
            found[file.path] = content
        else:
            found[file.path] = str(content)
    return found


async def test_a_plain_folder(tmp_path: Path) -> None:
    """YAML files below the base path, as Git names them; its commit is a digest of them."""
    for name in (
        "a/x.yaml",
        "a/b/manifest.YML",
        "a/.git/c.yaml",
        "a/.h.yaml",
        "a/r.md",
        "z.yml",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    source = DirectorySource(tmp_path, base_path="a/")
    assert await read(source) == {
        "a/b/manifest.YML": b"a/b/manifest.YML",
        "a/x.yaml": b"a/x.yaml",
    }
    first = await source.head()
    assert first == await source.head()
    assert len(first.commit) == 40
    (tmp_path / "a/x.yaml").write_bytes(b"other")
    assert (await source.head()).commit != first.commit
    with pytest.raises(SourceError):
        await source.tree(first)
    await source.aclose()


async def test_a_checkout(tmp_path: Path) -> None:
    """Its commit is HEAD, packed or not, also in a worktree; edits show in the content."""
    checkout, worktree = tmp_path / "c", tmp_path / "w"
    checkout.mkdir()
    git(checkout, "init", "-q")
    unborn = await DirectorySource(checkout).head()
    (checkout / "a.yaml").write_text("id: a")
    assert await DirectorySource(checkout).head() != unborn
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "a")
    commit = git(checkout, "rev-parse", "HEAD")
    source = DirectorySource(checkout)
    head = await source.head()
    assert head.commit == commit
    (file,) = await source.tree(head)
    assert file.sha == git(checkout, "rev-parse", "HEAD:a.yaml")
    git(checkout, "worktree", "add", "-q", str(worktree))
    assert (await DirectorySource(worktree).head()).commit == commit
    git(checkout, "pack-refs", "--all")
    assert await source.head() == head
    (checkout / "a.yaml").write_text("id: b")
    edited = await source.head()
    assert edited.commit == commit
    assert edited.content != head.content
    git(checkout, "checkout", "-q", "--detach")
    assert (await source.head()).commit == commit


@pytest.mark.skipif(
    sys.platform == "win32", reason="links and pipes are made otherwise"
)
async def test_what_leads_out_of_the_folder(tmp_path: Path) -> None:
    """A link is named and not followed, no pipe is waited for, a file may go meanwhile."""
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "s.yaml").write_text("secret")
    (inside / "gone.yaml").write_text("x")
    (inside / "l.yaml").symlink_to(outside / "s.yaml")
    (inside / "d").symlink_to(outside)
    source = DirectorySource(inside)
    head = await source.head()
    gone, link = await source.tree(head)
    assert link.is_link
    assert not gone.is_link
    (inside / "gone.yaml").unlink()
    async for _, content in source.fetch(head, [gone, link]):
        assert isinstance(content, SourceError)
    os.mkfifo(inside / "p.yaml")
    with pytest.raises(SourceError, match="it is no file"):
        await source.head()


HEADS = {
    "a link to a file outside": "ref: refs/heads/out",
    "a name outside": "ref: ../../outside",
    "an absolute name": "ref: /proc/self/environ",
    "a name with dots": "ref: refs/../../outside",
    "no SHA": "PASSWORD=geheim",
    "no text": b"\xff\xfe",
    "a null": b"ref: refs/\0",
    "nothing": "",
    "a ref that is no SHA": "ref: refs/heads/text",
    "a ref in a linked folder": "ref: refs/linked/sha",
}


@pytest.mark.skipif(sys.platform == "win32", reason="links are made otherwise")
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
async def test_only_a_sha_is_a_commit(tmp_path: Path, head: str | bytes) -> None:
    """The commit is stored in Redis: nothing else is taken out of a stranger's folder."""
    (tmp_path / "outside").write_text("a" * 40)
    (tmp_path / "sha").write_text("b" * 40)
    folder = tmp_path / "folder"
    (folder / ".git/refs/heads").mkdir(parents=True)
    (folder / ".git/refs/heads/text").write_text("PASSWORD=geheim")
    (folder / ".git/refs/linked").symlink_to(tmp_path)
    (folder / "x.yaml").write_bytes(b"id: x")
    place = folder / ".git/HEAD"
    place.write_bytes(head if isinstance(head, bytes) else head.encode())
    source = DirectorySource(folder)
    found = await source.head()
    assert found.content == ""
    place.unlink()
    assert (
        found == await source.head()
    )  # as without a repository: a digest of the files
    if isinstance(head, str) and head.endswith("/out"):
        (folder / ".git/refs/heads/out").symlink_to(tmp_path / "sha")
        place.write_text(head)
        assert await source.head() == found


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such pipes")
async def test_a_pipe_in_the_git_folder(tmp_path: Path) -> None:
    """It is not waited for."""
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git/HEAD")
    with anyio.fail_after(10):
        assert len((await DirectorySource(tmp_path).head()).commit) == 40


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A file in 1,500 folders, which pytest itself could not remove."""
    top = tmp_path / "deep"
    top.mkdir()
    folder = os.open(top, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("a", dir_fd=folder)
        inner = os.open("a", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("x.yaml", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
    os.close(folder)
    yield top
    subprocess.run(["rm", "-rf", str(top)], check=True)


@pytest.mark.skipif(sys.platform == "win32", reason="paths are shorter there")
async def test_a_deep_folder(deep: Path) -> None:
    """As deep as a path can be: no fault of the folder, and none of the reader."""
    source = DirectorySource(deep)
    (file,) = await source.tree(await source.head())
    assert file.path == "a/" * 1_500 + "x.yaml"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such names")
async def test_an_error_can_be_printed(tmp_path: Path) -> None:
    """Whatever the name of the file is that it is about."""
    os.mkfifo(os.fsencode(tmp_path) + b"/\xff.yaml")
    with pytest.raises(SourceError, match="it is no file") as caught:
        await DirectorySource(tmp_path).head()
    assert str(caught.value).encode()


@pytest.mark.parametrize(
    ("folder", "base"),
    [
        ("nowhere", ""), ("", ".."), ("", "d"), ("", "f"),
        ("", "."), ("", "./e"), ("", "e//g"), ("", "e/../e"), ("", ".h"), ("", "e/.b/"),
        ("", "e\0g"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be(tmp_path: Path, folder: str, base: str) -> None:
    """There has to be one, and the base path lies inside of it."""
    (tmp_path / "f").write_text("")
    (tmp_path / "d").symlink_to("/")
    for inner in ("e/g", "e/.b", ".h"):  # hidden files are never read
        (tmp_path / inner).mkdir(parents=True)
    with pytest.raises(ConfigurationError):
        DirectorySource(tmp_path / folder, base_path=base)


def test_shas_are_those_of_git() -> None:
    """Of both kinds of repositories."""
    assert blob_sha(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert blob_sha(b"", like="0" * 64).startswith("473a0f4c3be8a936")


def test_a_head_is_a_value() -> None:
    """Two looks at the same are equal."""
    assert Head("a") == Head("a", "")
