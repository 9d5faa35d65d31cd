"""With fewer rights, or an older server, the agent works; what is weaker is said."""

from __future__ import annotations

import re
import time
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import anyio
import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError, Console, ProjectAgent, Status
from bls_agent.connection.connection import Connection
from bls_agent.connection.endpoint import Endpoint
from bls_agent.core import acl as rights
from bls_agent.core.acl import (
    RIGHTS,
    Mode,
    Right,
    acl_line,
    acl_rules,
    find_right,
)
from bls_agent.core.keys import (
    BROADCAST,
    CONTROL,
    DEAD_LETTERS,
    DELIVERIES,
    INFLIGHT,
    INFLIGHT_LISTS,
    INSTANCES,
    INTAKE,
    OWNER,
    PROJECT_CONSOLE,
    PROJECT_STATUS,
    SEEN,
    place_beside,
)
from bls_agent.devserver import DevServer
from tests.harness import (
    PASSWORD,
    History,
    eventually,
    execute,
    needs_selectors,
    records,
    status_of,
    url_with_rights,
)

DOCUMENT = Path(__file__).parents[2] / "docs/rights.md"
OPEN_TO_ALL = {"auth", "hello", "quit", "reset"}  # the server asks for no right
MODES: tuple[Mode, ...] = ("blocking", "compat", "reliable")
SETS = [*((mode, False) for mode in MODES), ("blocking", True)]
REPLICAS = "EVALSHA, EVAL, SET, TYPE, HGETALL, HSET, HDEL, PEXPIREAT"


def row_of(right: Right) -> str:
    on = " ".join(key.template for key in right.keys)
    on = f"`{on}`" if on else ""
    modes = " ".join(f"`{mode}`" for mode in sorted(right.modes))
    modes = "`replicas`" if right.replicas else modes
    return f"| `{right.shown}` | {on} | {modes} | {right.weaker} |"


def test_the_document_shows_the_table() -> None:
    """docs/rights.md has the rows of the code, in their order, and its line."""
    text = DOCUMENT.read_text("utf-8")
    assert [line for line in text.splitlines() if line.startswith("| `")] == [
        row_of(right) for right in RIGHTS
    ]
    assert acl_line("订单系统", "blocking") in text


def test_the_chinese_document_shows_the_same_rights() -> None:
    """It has the same commands, keys and modes, an effect for each, and the same rules."""
    chinese = DOCUMENT.with_suffix(".zh-CN.md").read_text("utf-8")
    rows = [line for line in chinese.splitlines() if line.startswith("| `")]
    for row, right in zip(rows, RIGHTS, strict=True):
        known, effect = row_of(right).split(" | ")[:3], row.split(" | ")[3:]
        assert row.split(" | ")[:3] == known
        assert effect != [f"{right.weaker} |"]
    printed = re.compile("^-@all .*$", re.MULTILINE)
    assert printed.findall(chinese) == printed.findall(DOCUMENT.read_text("utf-8"))


def test_wildcards_are_escaped() -> None:
    """A name is no pattern that opens other projects' keys."""
    assert r"%RW~a\*\?_控制)" in acl_line("a*?", "compat")


@pytest.mark.parametrize("name", ["a b", 'a"b', "a'b", "", "a\tb"])
def test_names_that_no_line_can_hold(name: str) -> None:
    """Blanks, quotes and what no name may hold are refused, with the rule."""
    with pytest.raises(ConfigurationError):
        acl_line(name)


def test_a_mode_that_is_none() -> None:
    """Misspelt, it would make a line without any rights."""
    with pytest.raises(ConfigurationError, match="one of: auto, blocking, compat, rel"):
        acl_line("订单系统", "relaible")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@needs_selectors
@pytest.mark.parametrize("name", ["it's", 'a"b"c', "a*'\\x41\""])
async def test_a_name_with_quotes_as_words(
    own_server: DevServer, admin: Redis, name: str
) -> None:
    """As words of their own a name with quotes can be given, and opens its keys only."""
    await url_of_user(admin, own_server, "agent", acl_rules(name, "blocking"))
    for key in (f"{name}_控制", f"x{name}_控制", f"{name[0]}{name}_控制"):
        said = await execute(admin, "ACL", "DRYRUN", "agent", "BLPOP", key, "1")
        assert (said in (b"OK", "OK")) is (key == f"{name}_控制")


@pytest.mark.parametrize(
    ("request_", "shown"),
    [
        (("SET", "a_项目状态", "在线", "EX", 60, "GET"), "SET … GET"),
        (("SET", "a_项目状态", "在线"), "SET"),
        (("CLIENT", "UNBLOCK", 7), "CLIENT UNBLOCK"),
        (("LTRIM", "a_控制", 1, -1), "LTRIM"),
        (("PING",), "PING"),
        (("HGETALL", "bls_agent:{a_项目状态}:instances".encode()), REPLICAS),
        (("EVALSHA", "0a", 2, b"bls_agent:{a}:instances"), REPLICAS),
        (("LTRIM", "somebody's", 1, -1), None),
    ],
)
def test_a_request_finds_its_row(
    request_: tuple[str | int | bytes, ...], shown: str | None
) -> None:
    """A refused request leads to what is weaker without it."""
    right = find_right(request_)
    assert (right.shown if right else None) == shown


async def url_of_user(
    admin: Redis, server: DevServer, name: str, rules: list[str]
) -> str:
    await execute(admin, "ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", *rules)
    return f"redis://{name}:{PASSWORD}@127.0.0.1:{server.port}/0"


async def refusals(admin: Redis) -> set[str]:
    """What the server had to refuse so far."""
    log = await execute(admin, "ACL", "LOG")
    pairs = (dict(zip(entry[::2], entry[1::2], strict=True)) for entry in log)
    return {pair[b"object"].decode() for pair in pairs}


async def is_parked(admin: Redis) -> bool:
    return any("b" in client["flags"] for client in await admin.client_list())


async def use_everything(
    agent: ProjectAgent,
    admin: Redis,
    project: str,
    history: History,
    *,
    user: str = "agent",
    patience: float = 5.0,
) -> None:
    """Status, records, commands, prefetch, a cut of the user's connections, give-back.

    Waits for each of them so many seconds: what is not allowed never comes.
    """

    @agent.command
    async def hold() -> None:
        await anyio.sleep(0.3)  # into the stop, which gives the rest back

    async with agent:
        agent.log.info("first")
        for _ in range(4):
            await history.push(admin, project)
        with anyio.move_on_after(patience):
            await agent.ready(2 * patience)
            await eventually(lambda: len(history.handled) == 4)
            await agent.flush(patience)
        await execute(admin, "CLIENT", "KILL", "USER", user)
        agent.log.info("second")
        await history.push(admin, project)
        with anyio.move_on_after(patience):
            await eventually(lambda: len(history.handled) == 5)
            await agent.flush(patience)
        items = [b'{"command":"hold"}']
        items += [b'{"command":"ping"}'] * 3
        await admin.rpush(f"{project}_控制", *items)
        with anyio.move_on_after(patience):
            await eventually(lambda: agent.stats().commands_running == 1)


@needs_selectors
@pytest.mark.parametrize("replicas", [False, True])
@pytest.mark.parametrize("mode", [*MODES, "auto"])
async def test_the_rights_of_the_table_are_enough(
    own_server: DevServer, admin: Redis, project: str, mode: Mode, replicas: bool
) -> None:
    """With exactly these rights everything works and nothing is refused."""
    name = f"{project}*"
    url = await url_of_user(
        admin, own_server, "agent", acl_rules(name, mode, replicas=replicas)
    )
    agent = ProjectAgent(name, redis=url, prefetch=4, mode=mode, replicas=replicas)
    history = History()
    history.attach(agent)
    await use_everything(agent, admin, name, history)
    assert history.handled == history.pushed
    assert [r["message"] for r in await records(admin, name)][:1] == ["first"]
    assert await status_of(admin, name) == "离线"
    assert await refusals(admin) <= {"client|list", "client"}  # as Redis 7, 6 name it
    async with agent:
        await agent.ready(5)
        began = time.perf_counter()
    assert time.perf_counter() - began < 1.7


async def test_the_flat_line_is_enough(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """What Redis 6 understands gives all rights, too, and none on other projects."""
    name = f"{project}*"
    rules = acl_rules(name, selectors=False)
    url = await url_of_user(admin, own_server, "agent", rules)
    agent = ProjectAgent(name, redis=url, prefetch=4)
    history = History()
    history.attach(agent)
    await use_everything(agent, admin, name, history)
    assert history.handled == history.pushed
    assert await refusals(admin) <= {"client|list", "client"}  # as Redis 7, 6 name it
    async with Redis.from_url(url, protocol=2) as user:
        for key in (f"{project}x_控制", f"{project}x_项目控制台", "something"):
            with pytest.raises(Exception, match=r"(?i)no permissions"):
                await user.lrange(key, 0, -1)


TWO_KEYS = {"lmove", "blmove"}  # the other one is never right below


@needs_selectors
@pytest.mark.parametrize(("mode", "replicas"), SETS)
async def test_nothing_else_is_allowed(
    own_server: DevServer, admin: Redis, project: str, mode: Mode, replicas: bool
) -> None:
    """Every other command, and each command on every other key, is refused."""
    rules = acl_rules(project, mode, replicas=replicas)
    await url_of_user(admin, own_server, "agent", rules)
    granted = rights_of(mode, replicas=replicas)
    keys = keys_of(project)
    others = [*keys_of(f"{project}x"), "别的"]

    def words_of(command: str, arity: int, key: str) -> list[str]:
        words = command.split("|")
        return [*words, *[key, "1", *["1"] * 8][: max(0, abs(arity) - len(words))]]

    connection = Connection(Endpoint.of(own_server.url), "test")
    found = await arities(connection)
    asked = {
        (command, key): ("ACL", "DRYRUN", "agent", *words_of(command, arity, key))
        for command, arity in found.items()
        if command not in OPEN_TO_ALL
        for key in [*keys, *others]
    }
    said = await connection.call_many(list(asked.values()))
    await connection.aclose()
    replies = zip(asked, said, strict=True)
    allowed = {pair for pair, reply in replies if reply == b"OK"}
    expected: set[tuple[str, str]] = set()
    for right in granted:
        for command in right.command.split():
            # A script without keys may always be run.
            anywhere = not right.keys or command in {"eval", "evalsha"}
            expected |= {
                (command, key)
                for key in [*keys, *others]
                if anywhere or (key in keys and opens(right, key, project))
            }
    expected = {pair for pair in expected if pair[0] not in TWO_KEYS}
    assert allowed == expected


def rights_of(mode: Mode, *, replicas: bool) -> list[Right]:
    rows = [r for r in RIGHTS if mode in r.modes and not r.extra]
    return [r for r in rows if replicas or not r.replicas]


def keys_of(project: str) -> list[str]:
    """One key of each kind that an agent of this project touches."""
    control = CONTROL.build(project=project)
    status = PROJECT_STATUS.build(project=project)
    inflight = INFLIGHT.locate(place=place_beside(control), instance="web-1")
    books = (INFLIGHT_LISTS, DELIVERIES, SEEN, DEAD_LETTERS)
    return [
        status,
        PROJECT_CONSOLE.build(project=project),
        control,
        inflight,
        OWNER.locate(place=place_beside(inflight)),
        *(book.locate(place=place_beside(control)) for book in books),
        BROADCAST.locate(place=place_beside(control), instance="web-1"),
        INTAKE.locate(place=place_beside(control)),
        INSTANCES.locate(place=place_beside(status)),
    ]


def opens(right: Right, key: str, project: str) -> bool:
    """A pattern of the row fits the key."""
    return any(fnmatchcase(key, pattern) for pattern in right.patterns(project))


async def arities(connection: Connection) -> dict[str, int]:
    """Every command and subcommand of the server, with the words it takes."""
    found: dict[str, int] = {}
    for entry in await connection.call("COMMAND"):
        subcommands = entry[9] if len(entry) > 9 else []
        for name, arity, *_ in subcommands or [entry]:
            found[name.decode().lower()] = arity
    return found


def without(
    project: str, mode: Mode, right: Right, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The rules of the table, less one right."""
    if right.option:
        rules = acl_rules(project, mode)
        suffix = f"~{PROJECT_STATUS.pattern(project=project)})"
        return [r.replace("%RW", "%W") if r.endswith(suffix) else r for r in rules]
    rows = [r for r in RIGHTS if (r.command, r.keys) != (right.command, right.keys)]
    with monkeypatch.context() as patch:
        patch.setattr(rights, "RIGHTS", tuple(rows))
        return acl_rules(project, mode, replicas=right.replicas)


# What the tour of use_everything() needs for certain, so that its lack must be said.
TOURED = {
    "SET", "SET … GET", "CLIENT SETNAME", "CLIENT ID", "RPUSH",
    "BLPOP", "LPOP", "LPUSH", "EVALSHA", "EVAL",
}  # fmt: skip


@needs_selectors
@pytest.mark.parametrize(("mode", "replicas"), SETS)
async def test_each_right_missing_in_turn(
    own_server: DevServer,
    admin: Redis,
    project: str,
    mode: Mode,
    replicas: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without one right the rest works, what is weaker is said once, nothing spins."""
    missing = rights_of(mode, replicas=replicas)
    missing = [r for r in missing if r.replicas == replicas]
    names = [f"{project}_{number}" for number in range(len(missing))]
    results: dict[str, History] = {}

    async def live(name: str, right: Right) -> None:
        rules = without(name, mode, right, monkeypatch)
        url = await url_of_user(admin, own_server, name, rules)
        agent = ProjectAgent(name, redis=url, mode=mode, prefetch=4, replicas=replicas)
        results[name] = History()
        results[name].attach(agent)
        patience = 1.0 if right.essential else 20.0  # what never comes, and what does
        await use_everything(
            agent, admin, name, results[name], user=name, patience=patience
        )
        assert not agent.stats().faults

    began = time.perf_counter()
    async with anyio.create_task_group() as agents:
        for name, right in zip(names, missing, strict=True):
            agents.start_soon(live, name, right)
    seconds = time.perf_counter() - began
    refused = sum(
        s.get("rejected_calls", 0) for s in (await admin.info("commandstats")).values()
    )
    assert refused < 5 * max(seconds, 1.0) * len(missing)
    said = Counter(
        r.getMessage().partition("(no_permission): ")[2].partition(". `")[0]
        for r in caplog.records
    )
    for name, right in zip(names, missing, strict=True):
        alike = [r for r in missing if r.weaker == right.weaker]
        # One more: who may not read the status key lacks two rows at once.
        assert said[right.weaker] <= len(alike) + 1, right
        if right.shown in TOURED:
            assert said[right.weaker] > 0, right
        if not right.weaker.startswith("no command is received"):
            assert results[name].handled == results[name].pushed, right
        if not (right.essential and right.keys == (PROJECT_STATUS,)):
            assert await status_of(admin, name) == "离线", right
        if not (right.essential and right.keys == (PROJECT_CONSOLE,)):
            texts = [r["message"] for r in await records(admin, name)]
            assert "first" in texts, right


@needs_selectors
async def test_the_rights_of_the_other_end_are_enough(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """With the line of the document a Console does all that it can, and no more."""
    line = DOCUMENT.read_text("utf-8").partition("## A console")[2]
    rules = line.partition("```text\n")[2].partition("\n```")[0]
    words = [word.strip() for word in re.findall(r"\([^)]*\)|[^\s()]+", rules)]
    url = await url_of_user(admin, own_server, "console", words)
    agent = ProjectAgent(project, redis=own_server.url, replicas=True, instance="一")
    async with agent, Console(url) as console:
        await agent.ready(5)
        assert await console.status(project) is Status.ONLINE
        assert list(await console.projects()) == [project]
        assert list(await console.instances(project)) == ["一"]
        assert list(await console.call_all(project, "ping", timeout=5)) == ["一"]
        assert (await console.call(project, "ping")).succeeded
        assert len(await console.logs(project)) == 2
    assert not await refusals(admin)


async def test_blpop_refused_and_lpop_not(project: str) -> None:
    """auto with prefetch on a server without BLPOP: what LPOP has taken is run."""
    with DevServer(options=("--rename-command", "BLPOP", "")) as server:
        async with Redis.from_url(server.url, protocol=2) as admin:
            history = History()
            agent = ProjectAgent(project, redis=server.url, prefetch=4)
            history.attach(agent)
            for _ in range(6):
                await history.push(admin, project)
            async with agent:
                await eventually(lambda: len(history.handled) == 6)
                await eventually(lambda: agent.stats().mode == "compat")
            await history.check(admin, project)


async def test_lpush_refused_at_the_stop(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """What cannot be given back is run within shutdown_timeout, once."""
    url = await url_with_rights(admin, own_server, "~*", "+@all", "-lpush")
    history = History()
    agent = ProjectAgent(project, redis=url, prefetch=8)
    history.attach(agent)
    started = History()

    @agent.command
    async def hold() -> None:
        started.handled.append(0)
        await anyio.sleep(0.1)

    await admin.rpush(f"{project}_控制", b'{"command":"hold"}')
    for _ in range(7):
        await history.push(admin, project)
    async with agent:
        await eventually(lambda: started.handled == [0])
    assert history.handled == history.pushed
    await history.check(admin, project)


@needs_selectors
async def test_after_an_ambiguous_write_without_the_right_to_read(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Where the tail cannot be searched it is sent again, and counted."""
    url = await url_with_rights(
        admin, own_server, f"%W~{project}_项目控制台", "~*_项目状态", "~*_控制", "+@all"
    )
    agent = ProjectAgent(project, redis=url, redis_timeout=0.3)
    async with agent:
        await agent.ready(5)
        agent.log.info("first")
        assert await agent.flush(5)
        own_server.freeze()
        agent.log.info("ambiguous")
        await eventually(lambda: not agent.stats().connections["data"])
        own_server.thaw()
        assert await agent.flush(10)
        assert agent.stats().logs_maybe_repeated == 1
    found = [r["message"] for r in await records(admin, project)]
    assert found.count("first") == 1
    assert found.count("ambiguous") in (1, 2)


async def test_a_record_that_is_refused_for_good_does_not_hold_the_stop(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """A console key of another type: closing does not wait for what cannot be written."""
    await admin.set(f"{project}_项目控制台", "somebody's data")
    agent = ProjectAgent(project, redis=own_server.url)
    async with agent:
        await agent.ready(5)
        agent.log.info("waits")
        began = time.perf_counter()
        assert not await agent.flush(5)
    assert time.perf_counter() - began < 4
    assert await status_of(admin, project) == "离线"


async def test_client_commands_refused(
    own_server: DevServer, admin: Redis, project: str
) -> None:
    """Without CLIENT a stop waits for the end of the block, and loses nothing."""
    url = await url_with_rights(admin, own_server, "~*", "+@all", "-client")
    history = History()
    agent = ProjectAgent(project, redis=url)
    history.attach(agent)
    async with agent:
        await agent.ready(5)
        for _ in range(3):
            await history.push(admin, project)
        await eventually(lambda: len(history.handled) == 3)
        began = time.perf_counter()
    assert time.perf_counter() - began < 6
    await history.check(admin, project)


@needs_selectors
async def test_an_idle_stop_without_the_right_to_unblock(
    own_server: DevServer,
    admin: Redis,
    project: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It takes the rest of the block, and the host is told why."""
    url = await url_with_rights(admin, own_server, "~*", "+@all", "-client|unblock")
    async with ProjectAgent(project, redis=url) as agent:
        await eventually(lambda: is_parked(admin))
        began = time.perf_counter()
        assert not agent.stats().faults
    assert time.perf_counter() - began < 6
    (said,) = [r.getMessage() for r in caplog.records]
    assert "CLIENT UNBLOCK" in said
    assert PASSWORD not in said
