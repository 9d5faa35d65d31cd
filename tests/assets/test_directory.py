"""A folder as a source: what Git would say of it, and nothing from outside of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    ("folder", "base"), [("nowhere", ""), ("", ".."), ("", "d"), ("", "f")]
)
def test_a_folder_that_cannot_be(tmp_path: Path, folder: str, base: str) -> None:
    """There has to be one, and the base path lies inside of it."""
    (tmp_path / "f").write_text("")
    (tmp_path / "d").symlink_to("/")
    with pytest.raises(ConfigurationError):
        DirectorySource(tmp_path / folder, base_path=base)


def test_shas_are_those_of_git() -> None:
    """Of both kinds of repositories."""
    assert blob_sha(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert blob_sha(b"", like="0" * 64).startswith("473a0f4c3be8a936")


def test_a_head_is_a_value() -> None:
    """Two looks at the same are equal."""
    assert Head("a") == Head("a", "")
