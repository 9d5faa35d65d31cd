"""GitHub as a source, from a server on loopback: complete contents, or a clear error."""

from __future__ import annotations

import gzip
import io
import logging
import tarfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bls_agent import ConfigurationError, SourceError
from bls_agent.assets import AssetSync, GitHubSource, Head
from bls_agent.assets.sources import blob_sha
from bls_agent.devserver import DevServer
from tests.programs import run_python

from .github_server import (
    LINK,
    REPO,
    Content,
    Fault,
    GitHub,
    body,
    now,
    serving,
    slow,
    status,
    torn,
)  # fmt: skip

TOKEN = "ghx-token-9f8e7d"


@pytest.fixture
def github() -> Iterator[GitHub]:
    """A repository with three assets."""
    with serving() as server:
        server.commit(files(3))
        yield server


def manifest(name: str, version: str = "1.0.0") -> bytes:
    """A prompt."""
    return f'id: {name}\nversion: "{version}"\ncategory: prompt\nname: 提示 {name}\n'.encode()


def files(count: int) -> dict[str, Content]:
    """So many assets, and a file that is none."""
    made: dict[str, Content] = {
        f"lib/prompts/p{n}.yaml": manifest(f"p{n}") for n in range(count)
    }
    return {**made, "README.md": b"x"}


def source(github: GitHub, **options: Any) -> GitHubSource:
    """With waits of milliseconds."""
    chosen = {"base_url": github.url, "pause": 0.001, "max_wait": 0.05, **options}
    return GitHubSource(REPO, **chosen)


async def read(one: GitHubSource, head: Head | None = None) -> dict[str, Any]:
    """Everything the source gives, errors as text."""
    head = head or await one.head()
    found: dict[str, Any] = {}
    async for file, content in one.fetch(head, await one.tree(head)):
        assert file.path not in found
        found[file.path] = content if isinstance(content, bytes) else str(content)
        assert not isinstance(content, bytes) or blob_sha(content) == file.sha
    return found


def texts(github: GitHub) -> dict[str, Any]:
    """What should be read."""
    return {path: text for path, text in github.files().items() if ".yaml" in path}


@pytest.mark.parametrize("count", [3, 30])
async def test_a_repository(github: GitHub, count: int) -> None:
    """Few files come singly, many as one archive; an unchanged branch is one request."""
    github.commit(files(count))
    one = source(github)
    assert await read(one) == texts(github)
    kinds = [path.split("/")[1] for path in github.paths()]
    singly = ["commits", "git", "git", "git", "git"]
    assert kinds == (singly if count == 3 else ["commits", "git", "tarball", "archive"])
    github.asked.clear()
    head = await one.head()
    assert head.commit == github.heads["main"]
    ((_, _, headers),) = github.asked
    assert "If-None-Match" in headers
    github.commit(files(1))
    assert (await one.head()).commit == github.heads["main"] != head.commit
    assert (await one.head()).commit == github.heads["main"]
    await one.aclose()


async def test_a_branch_and_a_folder(github: GitHub) -> None:
    """Only that branch, only below that folder; without them the default branch, and all."""
    github.commit(
        {"lib/a.yaml": b"1", "lib/b/c.yml": b"2", "other/d.yaml": b"3"}, "feature/x"
    )
    one = source(github, branch="feature/x", base_path="/lib/")
    assert await read(one) == {"lib/a.yaml": b"1", "lib/b/c.yml": b"2"}
    assert one.name.endswith("/acme/assets@feature/x")
    with pytest.raises(SourceError, match="no folder 'lib/a"):
        await read(source(github, branch="feature/x", base_path="lib/a.yaml"))
    with pytest.raises(SourceError, match="no such branch"):
        await source(github, branch="gone").head()
    assert set(await read(source(github))) == set(texts(github))


async def test_the_commit_that_is_recorded_is_read(github: GitHub) -> None:
    """A forced push between two requests changes nothing, unless the commit is gone."""
    one, before = source(github), texts(github)
    head = await one.head()
    github.commit({"lib/new.yaml": b"new"})
    assert await read(one, head) == before
    with pytest.raises(SourceError, match="no such repository, branch or commit"):
        await read(one, Head("1" * 40))


async def test_a_list_that_is_cut(github: GitHub) -> None:
    """It is no list: an error names the remedy; links are said to be links."""
    inside: dict[str, Content] = {"lib/a.yaml": b"1", "lib/l.yaml": (LINK, b"a.yaml")}
    github.commit({**inside, **{f"other/{n}.yaml": b"2" for n in range(9)}})
    github.cut_after = 7
    one = source(github)
    with pytest.raises(SourceError, match="too long: pass base_path="):
        await one.tree(await one.head())
    part = source(github, base_path="lib")
    listed = await part.tree(await part.head())
    assert {file.path for file in listed} == inside.keys()
    assert [file.path for file in listed if file.is_link] == ["lib/l.yaml"]


LATER = status(429, "slow down", Retry_After="0.01")
FAULTS = {
    "server error": [status(500), status(502), status(503)],
    "a page instead of an answer": [body(b"<html>")],
    "nothing": [body(b"")],
    "torn": [torn(), torn(0.9), torn(0)],
    "slow": [slow(0.5)],
    "secondary limit": [status(403, "abuse", Retry_After="0.01"), LATER],
}  # fmt: skip


@pytest.mark.parametrize(
    "place", ["/commits/", "/git/trees/", "/git/blobs/", "/archive/"]
)
@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
async def test_a_passing_fault(github: GitHub, faults: list[Fault], place: str) -> None:
    """The request is sent again, and everything arrives."""
    github.commit(files(25 if place == "/archive/" else 2))
    github.fail(place, *faults)
    assert await read(source(github, timeout=0.3)) == texts(github)
    assert not github.faults


def test_another_attempt_is_no_news(github: GitHub) -> None:
    """A program that has set up no logging sees nothing on its standard error."""
    program = (
        "import asyncio; from bls_agent.assets import GitHubSource\n"
        f"source = GitHubSource({REPO!r}, base_url={github.url!r}, pause=0.001)\n"
        "print(asyncio.run(source.head()).commit)"
    )
    github.fail("/commits/", status(500), status(502))
    assert run_python("-c", program) == (0, f"{github.heads['main']}\n", "")


async def test_a_mark_that_cannot_be_sent_again(github: GitHub) -> None:
    """An ETag that is no ASCII is not kept: the next question has none."""
    one, commit = source(github), github.heads["main"]
    github.fail("/commits/", body(commit.encode(), ETag='W/"é"'))
    for _ in range(2):
        assert (await one.head()).commit == commit
    assert "If-None-Match" not in github.asked[-1][2]
    await one.head()
    assert github.asked[-1][2]["If-None-Match"] == f'W/"{commit}"'


async def test_the_quota_is_used_up(github: GitHub) -> None:
    """A limit that ends soon by the clock of the server is waited for."""
    over = {"X_RateLimit_Remaining": "0", "X_RateLimit_Reset": "1000"}
    github.fail("/git/trees/", status(403, "API rate limit exceeded", **over))
    assert await read(source(github, max_wait=2)) == texts(github)


@pytest.mark.parametrize(
    ("fault", "said", "wait"),
    [
        (status(500), "status 500", None),
        (status(401), "the token is wrong", None),
        (status(403), "lacks the right", None),
        (status(409, "Git Repository is empty."), "empty", None),
        (status(429, "slow", Retry_After="900"), "rate limit.*try again in 900 s", 900),
        (status(403, "You have exceeded a secondary rate limit"), "in 60 s", 60),
        (status(403, "", Retry_After=now(5000)), "rate limit", 5000),
        (status(403, "", Retry_After="soon"), "in 60 s", 60),
        (status(403, "x", X_RateLimit_Remaining="0",
                X_RateLimit_Reset=str(int(time.time()) + 5000)), "rate limit", 5000),
        (body(b"[]"), "no SHA", None),
        (body(b"a" * 40, Content_Encoding="gzip"), "compressed", None),
        (body(b"a" * 40_000_000), "more than", None),
        (status(302, Location="https://elsewhere.example/x"), "elsewhere.example", None),
        (status(302, Location="http://127.0.0.1:1/x"), "redirects", None),
        (status(302, Location="https://127.0.0.1/x"), "redirects", None),
        (status(302, Location="http://[x"), "redirects", None),
        (status(301, Location="?again"), "again and again", None),
        (torn(0), "Protocol", None),
        (slow(0.3), "no complete answer within 0.1 s", None),
    ],
    ids=range(19),
)  # fmt: skip
async def test_a_lasting_fault(
    github: GitHub, fault: Fault, said: str, wait: float | None
) -> None:
    """An error that says what is wrong, and when to try again if that is known."""
    github.fail("/", *[fault] * 6)
    with pytest.raises(SourceError, match=said) as caught:
        await source(github, timeout=0.1 if "0.1 s" in said else 5.0).head()
    # The two moments were computed when the tests were collected.
    late = 900 if wait == 5000 else 5
    assert caught.value.retry_after == (wait and pytest.approx(wait, abs=late))


async def test_nobody_answers() -> None:
    """That is an error like any other."""
    one = GitHubSource(REPO, base_url="http://127.0.0.1:1", pause=0.001)
    with pytest.raises(SourceError, match="ConnectError"):
        await one.head()


async def test_a_slow_link_is_no_dead_one(github: GitHub) -> None:
    """Whatever arrives is progress: an answer may last longer than one wait."""

    def drip(handler: Any) -> None:
        commit = github.heads["main"].encode()
        handler.send_response(200)
        handler.send_header("Content-Length", "4040")
        handler.end_headers()
        for chunk in [b" " * 1000] * 4 + [commit]:
            time.sleep(0.1)
            handler.wfile.write(chunk)

    github.fail("/", drip)
    head = await source(github, timeout=0.3).head()
    assert head.commit == github.heads["main"]
    assert len(github.asked) == 1


@pytest.mark.parametrize(
    "told",
    [
        b"{}", b'{"tree": []}', b'{"tree": [], "truncated": null}', b"[]", b"{",
        b'{"truncated": false, "tree": [{"path": "a.yaml", "type": "blob"}]}',
        b'{"truncated": false, "tree": {"a": 1}}',
        b'{"truncated": false, "tree": [{"path": "a", "type": "tree", "sha": "../x"}]}',
    ],
)  # fmt: skip
async def test_a_list_that_is_none(github: GitHub, told: bytes) -> None:
    """It is never taken for an empty repository."""
    github.fail("/git/trees/", *[body(told)] * 4)
    with pytest.raises(SourceError, match="broken answer"):
        await read(source(github))


async def test_some_files_fail(github: GitHub) -> None:
    """The others come all the same; after three in a row nothing more is asked."""
    github.commit(files(10))
    github.fail("/git/blobs/", status(404), body(b"other"), *[status(500)] * 2)
    found = await read(source(github))
    assert [type(one) for one in found.values()] == [str] + [bytes] * 9
    github.asked.clear()
    github.fail("/git/blobs/", *[status(404)] * 3)
    found = await read(source(github))
    assert [type(one) for one in found.values()] == [str] * 10
    assert len(github.asked) == 2 + 3
    github.asked.clear()
    github.fail("/git/blobs/", status(429, Retry_After="600"))
    found = await read(source(github))
    assert all("try again in 600 s" in one for one in found.values())
    assert len(github.asked) == 2 + 1


def archive(*members: tuple[str, bytes, bytes]) -> bytes:
    """An archive of names, types and contents."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as made:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = (
                kind,
                "/etc/passwd",
                len(content),
            )
            made.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@pytest.mark.parametrize("made", [
    archive(("a/lib/prompts/p1.yaml", tarfile.SYMTYPE, b"")),
    archive(("a/lib/prompts/p1.yaml", tarfile.LNKTYPE, b"")),
    archive(("a/lib/prompts/p1.yaml", tarfile.CHRTYPE, b"")),
    archive(("a/../lib/prompts/p1.yaml", tarfile.REGTYPE, b"x" * len(manifest("p1")))),
    archive(("/lib/prompts/p1.yaml", tarfile.REGTYPE, b"x" * len(manifest("p1")))),
    archive(("a/lib/prompts/p1.yaml", tarfile.REGTYPE, b"x" * 100_000)),
    archive(("a/x", tarfile.REGTYPE, b"x" * 2**20))[:500],
    b"no archive", b"", gzip.compress(b"no archive"),
    gzip.compress(b"x" * 2**20)[:-4],
], ids=range(11))  # fmt: skip
async def test_an_archive_that_is_none(
    github: GitHub, made: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is used; the files come singly then."""
    github.commit(files(25))
    github.fail("/archive/", *[body(made)] * 4)
    assert await read(source(github)) == texts(github)


async def test_an_archive_that_is_too_large(
    github: GitHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed or unpacked: it is given up, and the files come singly."""
    github.commit(files(25))
    for limit, size in (("MAX_ARCHIVE", 100), ("MAX_UNPACKED", 1_000)):
        with monkeypatch.context() as patch:
            patch.setattr(f"bls_agent.assets.github.{limit}", size)
            github.asked.clear()
            assert await read(source(github)) == texts(github)
            assert sum("/git/blobs/" in path for path in github.paths()) == 25


async def test_an_archive_that_is_not_complete(github: GitHub) -> None:
    """What it leaves out, as by export-ignore, comes singly."""
    github.commit(files(25))
    github.leave_out = ("lib/prompts/p3.yaml", "lib/prompts/p4.yaml")
    assert await read(source(github)) == texts(github)
    assert len(github.asked) == 6


async def test_the_token_stays_at_home(
    github: GitHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is sent to the host of the address alone, and no text shows it."""
    caplog.set_level(logging.INFO)
    github.token = TOKEN
    github.commit(files(25))
    port = github.url.rpartition(":")[2]
    monkeypatch.setenv("HTTP_PROXY", github.url)  # answers for a host of any name
    monkeypatch.setenv("NO_PROXY", "")
    github.archive_at = "http://codeload.localhost"
    one = source(github, token=TOKEN, base_url=f"http://localhost:{port}")
    assert await read(one) == texts(github)
    sent = [headers.get("Authorization") for _, _, headers in github.asked]
    assert sent == [f"Bearer {TOKEN}"] * 3 + [None]
    github.archive_at = "http://elsewhere.localhost"
    assert await read(one) == texts(github)  # singly
    assert not any("elsewhere" in headers["Host"] for _, _, headers in github.asked)
    github.fail("/", status(418, f"your token is {TOKEN}"))
    with pytest.raises(SourceError) as caught:
        await one.head()
    said = [repr(one), one.name, repr(caught.value), caplog.text]
    assert not any(TOKEN in text or "secret-of-archive" in text for text in said)
    assert "tarball" in caplog.text


async def test_another_address_without_the_token(github: GitHub) -> None:
    """A private repository needs it."""
    github.token = TOKEN
    with pytest.raises(SourceError, match="the token may not read it"):
        await source(github).head()
    assert await read(source(github, token=TOKEN)) == texts(github)


@pytest.mark.parametrize(
    "options",
    [
        {"repo": "acme"}, {"repo": "acme/a/b"}, {"repo": "acme/.."}, {"repo": "a b/c"},
        {"branch": "a b"}, {"branch": "../x"}, {"branch": "-x"}, {"branch": "a\n"},
        {"base_path": "../x"}, {"base_path": "a\\b"}, {"base_path": "a//b"},
        {"base_path": "a/.b"},
        {"token": "a b"}, {"token": "geheim\n"}, {"token": "密"},
        {"base_url": "ftp://h"}, {"base_url": "nothing"}, {"base_url": "https://"},
        {"base_url": "https://u:geheim@h/"}, {"base_url": "https://h/?a=geheim"},
        {"base_url": "http://h/", "token": "geheim"},
        {"timeout": 0}, {"max_wait": -1}, {"pause": "1"},
    ],
)  # fmt: skip
def test_arguments(options: dict[str, Any]) -> None:
    """What cannot be is refused at once, without saying a secret."""
    repo = options.pop("repo", REPO)
    with pytest.raises(ConfigurationError) as caught:
        GitHubSource(repo, **options)
    assert "geheim" not in str(caught.value)


def version(count: int, number: int) -> dict[str, Content]:
    """So many assets, each in another version than before."""
    return {f"lib/p{n}.yaml": manifest(f"p{n}", f"{number}.0.0") for n in range(count)}


LASTING: list[Fault] = [
    status(500), status(404), status(401), status(429, Retry_After="900"), torn(),
    slow(0.2), body(b"{}"), status(302, Location="https://elsewhere.example/"),
]  # fmt: skip


@pytest.mark.parametrize("place", ["/commits/", "/git/trees/", "/git/blobs/", "/"])
async def test_no_fault_deletes(
    github: GitHub,
    own_server: DevServer,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """A synchronisation through any fault is complete or failed; the next one is complete."""
    monkeypatch.setattr("bls_agent.assets.github.ARCHIVE_FROM", 3)
    one = source(github, timeout=0.1)
    async with AssetSync(own_server.url, one) as sync:
        held = version(4, 0)
        github.commit(held)
        assert (await sync.run()).status == "complete"
        for number, fault in enumerate(LASTING, start=1):
            before = (await sync.library.sync_state()).last_commit_sha
            held |= version(3 if number % 2 else 2, number)  # an archive, or files
            github.commit(held)
            github.fail(place, *[fault] * 100)
            report = await sync.run()
            state = await sync.library.sync_state()
            assert len(await sync.library.list()) == 4
            if report.status == "complete":
                assert state.last_commit_sha == github.heads["main"]
            else:
                assert (report.status, report.deleted) == ("failed", ())
                assert (state.sync_status, state.last_commit_sha) == ("failed", before)
            github.faults.clear()
            assert (await sync.run()).status in {"complete", "unchanged"}
            for n in range(4):
                found = await sync.library.get(f"p{n}")
                assert found is not None
                sha = blob_sha(github.files()[f"lib/p{n}.yaml"])
                assert found.github_sha == sha


async def test_unchanged_costs_one_request(
    github: GitHub, own_server: DevServer
) -> None:
    """And a commit that changes one file three."""
    async with AssetSync(own_server.url, source(github)) as sync:
        assert (await sync.run()).total == 3
        github.asked.clear()
        assert (await sync.run()).status == "unchanged"
        assert len(github.asked) == 1
        github.commit({**files(3), "lib/prompts/p1.yaml": manifest("p1", "2.0.0")})
        assert (await sync.run()).updated == ("p1",)
        assert len(github.asked) == 1 + 3
