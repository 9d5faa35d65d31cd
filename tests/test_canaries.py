"""Planted secrets: after all that an agent can be told, none of them is anywhere.

The same things are told twice, under the names of secrets and under harmless ones. The
second time everything has to arrive, so that the first cannot pass by silence.
"""

from __future__ import annotations

import contextlib
import json
import linecache
import logging
import secrets
import traceback
from collections.abc import Awaitable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, cast

import anyio
import pydantic
import pytest
from redis.asyncio import Redis

from bls_agent import (
    BlsError,
    BLSHandler,
    CommandContext,
    ConfigurationError,
    Console,
    ProjectAgent,
    RedisRefusedError,
    Reject,
    Settings,
)
from bls_agent.devserver import DevServer
from bls_agent.project.commands.router import CallNext
from tests.harness import eventually, execute

LEAST = 50  # canaries
KNOWN_BY = 8  # letters of a canary by which even a piece of it is found


@dataclass
class Garden:
    """Gives out canaries, and the names under which they are told.

    Attributes:
        secret: Whether the names are those of secrets.
        planted: Place → canary.
        private: Places of which nothing arrives under harmless names either.
    """

    secret: bool
    planted: dict[str, str] = field(default_factory=dict[str, str])
    private: set[str] = field(default_factory=set[str])
    errors: list[BaseException] = field(default_factory=list[BaseException])

    def plant(self, place: str, *, arrives: bool = True, digits: bool = False) -> str:
        """Give a new canary."""
        assert place not in self.planted
        number = str(secrets.randbelow(10**15) + 10**15)
        canary = number if digits else f"k{secrets.token_hex(9)}"
        self.planted[place] = canary
        if not arrives:
            self.private.add(place)
        return canary

    def name(self, name: str) -> str:
        """Give the name of a secret, or a harmless one of the same kind."""
        if self.secret:
            return name
        return (
            "颜色" if not name.isascii() else "--colour" if name[0] == "-" else "colour"
        )

    def url(self, place: str, host: str = "cache:6379") -> str:
        """Give a URL with a canary: as the password, or in the path."""
        canary = self.plant(place)
        if self.secret:
            return f"redis://service:{canary}@{host}/0"
        return f"redis://{host}/0/{canary}"

    def shape(self, place: str, beginning: str, end: str = "") -> str:
        """Give what looks like a token by itself, or the canary alone."""
        canary = self.plant(place)
        return f"{beginning}{canary}{end}" if self.secret else canary

    @contextlib.contextmanager
    def catching(self, kind: type[BaseException]) -> Iterator[None]:
        """Keep what is raised, to look at its traceback later."""
        with pytest.raises(kind) as caught:
            yield
        self.errors.append(caught.value)


@dataclass
class Account:
    user: str
    password: str


@dataclass
class Colour:
    user: str
    colour: str


class Described:
    """Shows what it holds."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    def __repr__(self) -> str:
        return f"<Client {self.shown}>"


def log_metadata(garden: Garden, agent: ProjectAgent) -> None:
    """Plant canaries in whatever metadata can hold."""
    plant, name, log = garden.plant, garden.name, agent.log
    account = Account if garden.secret else Colour
    log.info("flat", **{name("password"): plant("flat")})
    log.info("a number", **{name("pin"): int(plant("number", digits=True))})
    log.info("nested", user={"id": 7, name("api_key"): plant("nested")})
    deep: object = {name("X-Auth-Token"): plant("deep")}
    for level in range(30):
        deep = [deep] if level % 2 else {"a": deep}
    log.info("deep", deep=deep)
    log.info("container", **{name("credentials"): {"a": ["b", plant("container")]}})
    log.info("dataclass", account=account("u", plant("dataclass")))
    log.info("tuple", pair=({name("secret"): plant("tuple")},))
    log.info("described", client=Described(f"{name('token')}={plant('described')!r}"))
    log.info("bytes", body=f'{{"{name("pwd")}":"{plant("bytes")}"}}'.encode())
    log.info("set", items={f"{name('PHPSESSID')}={plant('set')}"})
    log.info("argv", argv=["mysql", name("--password"), plant("argv"), "-v"])
    log.info("headers", headers=[(name("cookie").encode(), plant("headers").encode())])
    log.info("labels", env=[{"name": name("DB_PASSWORD"), "value": plant("labels")}])
    log.info("exception", error=ValueError(f"{name('otp')}: {plant('exception')}"))
    log.info("URL", url=garden.url("URL"))
    log.info("key", urls={garden.url("key of a dict"): 1})
    log.info("JSON", body=json.dumps({"a": {name("密码"): plant("escaped JSON")}}))
    log.info("中文", 用户={name("登录密码"): plant("Chinese")})
    log.info("own name", **{name("员工号"): plant("own name")})
    log.info("large", **{name("jwt"): plant("large"), "large": "x" * 100_000})
    log.bind(**{name("csrftoken"): plant("bound")}).warn("bound")
    logger = logging.getLogger("shop.canaries")
    logger.error("%s=%s", name("password"), plant("logging"), extra={name("pin"): plant("extra")})  # fmt: skip


def log_messages(garden: Garden, agent: ProjectAgent) -> None:
    """Plant canaries in messages."""
    plant, name, log = garden.plant, garden.name, agent.log
    log.info(f"login with {name('password')}={plant('message')} failed")
    log.info(f"connecting to {garden.url('URL in a message')} …")
    log.info(f"{name('Authorization')}: Digest {plant('header')}")
    log.info(f"sent {garden.shape('scheme', 'Bearer 0')} to the shop")
    log.info(f"GET /orders?{name('access_token')}={plant('query')}&page=2")
    log.info(f"用户{name('口令')}：{plant('Chinese message')}，重试")
    log.info(f"run mysql {name('--password')} {plant('command line')} -v")
    log.info(f"using {garden.shape('GitHub', 'ghp_', '0' * 20)} for it")
    log.info(f"using {garden.shape('JWT', 'eyJhbGciOiJ9.', '.sig-natu_re')} for it")
    begin, end = (f"-----{word} PRIVATE KEY-----" for word in ("BEGIN", "END"))
    log.info("key " + garden.shape("PEM", f"{begin}\n", f"\n{end}"))
    cut = f"redis://u:{plant('cut in two', arrives=False)}@h/0"
    log.info("x" * (32_768 - 3 - 25) + (cut if garden.secret else "") + "y" * 40_000)


def log_exceptions(garden: Garden, agent: ProjectAgent) -> None:
    """Plant canaries in exceptions, their causes, notes and lines of source."""
    plant, name = garden.plant, garden.name
    try:
        try:
            raise KeyError(garden.url("cause"))
        except KeyError as error:
            raise ValueError(
                f"{name('token')}: {plant('exception message')}"
            ) from error
    except ValueError:
        agent.log.exception("it failed")
    try:
        try:
            raise OSError(f"{name('apiKey')}={plant('context')}")
        except OSError:
            raise RuntimeError("meanwhile")  # noqa: B904 - its context is wanted
    except RuntimeError as error:
        error.add_note(f"{name('set-cookie')}: a={plant('note')}")
        agent.log.exception("it failed again")
    source = f'raise OSError(dict({name("passwd")}="{plant("line of source")}"))\n'
    linecache.cache["<canary>"] = (len(source), None, [source], "<canary>")
    try:
        exec(compile(source, "<canary>", "exec"))
    except OSError:
        agent.log.exception("and again")


def register(garden: Garden, agent: ProjectAgent) -> dict[str, dict[str, Any]]:
    """Register handlers that give canaries away; give command → arguments."""
    plant, name = garden.plant, garden.name

    @agent.middleware
    async def guard(context: CommandContext, call_next: CallNext) -> Any:
        if context.command == "guarded":
            raise PermissionError(f"{name('session')}={plant('middleware')}")
        return await call_next(context)

    @agent.command
    async def returns() -> object:
        return {
            name("secret"): plant("result"),
            "a": [{name("pin"): plant("in result")}],
        }

    @agent.command
    async def returns_text() -> str:
        return f"{name('password')}: {plant('text as result')}"

    @agent.command
    async def raises(**arguments: Any) -> None:
        try:
            raise KeyError(garden.url("cause of a handler"))
        except KeyError as error:
            raise ValueError(f"cannot log in: {arguments}") from error

    @agent.command
    def raises_in_a_thread() -> None:
        raise OSError(f"{name('token')}={plant('handler in a thread')}")

    @agent.command
    async def rejects() -> None:
        details = {
            name("credential"): plant("details"),
            "url": garden.url("URL in details"),
        }
        raise Reject(f"wrong {name('password')}: {plant('reason')}", details)

    @agent.command
    async def logs(context: CommandContext) -> None:
        context.log.info("inside", **{name("auth"): plant("log of a handler")})

    @agent.fallback
    async def rest(context: CommandContext) -> None:
        raise LookupError(f"{context.command} {context.args}")

    def refuse(value: str) -> str:
        raise ValueError(f"{value} is too short")

    wrong = Annotated[str, pydantic.AfterValidator(refuse)]
    model = pydantic.create_model("Login", **{name("password"): (wrong, ...)})  # type: ignore[call-overload]

    @agent.command
    async def validates(given: str) -> None:
        model.model_validate({name("password"): given})

    async def checks(**arguments: str) -> None: ...

    checks.__annotations__["arguments"] = wrong
    agent.command("checks")(checks)
    argument = {name("password"): plant("argument")}
    return {
        "guarded": {},
        "returns": {},
        "returns_text": {},
        "raises": argument,
        "raises_in_a_thread": {},
        "rejects": {},
        "logs": {},
        "nobody's": {name("access-key"): plant("argument of an unknown command")},
        "validates": {"given": plant("input of pydantic")},
        "checks": {name("密码"): plant("ArgumentError")},
        f"x {name('token')}={plant('name of a command')}": {},
    }


def bad_messages(garden: Garden) -> list[bytes]:
    """Give messages that are discarded; their first 64 bytes are told."""
    plant, name = garden.plant, garden.name
    beginning = '{{"command":"a","{}":"{}'
    chinese = json.dumps(name("密码"))
    return [
        beginning.format(name("password"), plant("bad JSON")).encode(),
        f'{{"{name("密码")}":"{plant("bad JSON, Chinese")}'.encode(),
        f'{{{chinese}:"{plant("bad JSON, escaped")}'.encode(),
        f'["{name("token")}={plant("no object")}"]'.encode(),
        f"\xff {name('pin')}: {plant('no UTF-8')}".encode("latin-1"),
        b'{"command":5,"url":"%s' % garden.url("URL cut off", "h").encode()[:60],
    ]


async def run_commands(
    garden: Garden, agent: ProjectAgent, redis: Redis, project: str
) -> None:
    """Send every command and every bad message, and wait for their outcomes."""
    messages = bad_messages(garden)
    for name, arguments in register(garden, agent).items():
        command = {"id": "1", "command": name, "args": arguments}
        messages.append(json.dumps(command, ensure_ascii=False).encode())
    await redis.rpush(f"{project}_控制", *messages)
    await eventually(lambda: sum(agent.stats().outcomes.values()) == len(messages))


def misconfigure(garden: Garden, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give canaries to arguments and variables in which they have no place."""

    def url(place: str, scheme: str = "redis") -> str:
        return f"{scheme}://u:{garden.plant(place, arrives=False)}@h:1/0"

    with garden.catching(ConfigurationError):
        ProjectAgent("a", redis=url("wrong scheme", "http"))
    with garden.catching(ConfigurationError):
        ProjectAgent("a", redis=url("wrong option") + "?colour=red")
    with garden.catching(ConfigurationError):
        ProjectAgent("a", redis=url("wrong database") + "x")
    with garden.catching(ConfigurationError):
        Settings(redis_url=cast("str", url("bytes for a URL").encode()))
    with garden.catching(ConfigurationError):
        settings: Any = {"password": garden.plant("settings", arrives=False)}
        ProjectAgent("a", settings=settings)
    with garden.catching(ConfigurationError):
        Settings.from_env({"BLS_STATUS_TTL": url("wrong variable")})
    with garden.catching(ConfigurationError):
        ProjectAgent("a", log_level=url("wrong keyword"))
    agent = ProjectAgent("a")
    with garden.catching(ConfigurationError):
        agent.set_status(cast("Any", url("status")))
    monkeypatch.setenv("BLS_REDIS_URL", url("variable with a wrong URL", "rdis"))

    async def open_agent() -> None:
        async with agent:
            pass

    with garden.catching(ConfigurationError):
        _step(open_agent())


def _step(waiting: Awaitable[None]) -> None:
    """Run a coroutine to the error that it raises before it waits for anything."""
    cast("Any", waiting).send(None)


async def everything_in(redis: Redis) -> str:
    """Read every key and every value that a server holds."""
    found: list[object] = []
    async for key in redis.scan_iter("*"):
        kind = cast("bytes", await redis.type(key)).decode()
        assert kind in ("string", "list"), kind
        if kind == "string":
            found.append((key, await redis.get(key)))
        else:
            found.append((key, *await cast("Any", redis.lrange(key, 0, -1))))
    return "\n".join(
        part.decode("utf-8", "replace")
        for row in cast("list[tuple[bytes, ...]]", found)
        for part in row
    )


def told_by(errors: list[BaseException]) -> str:
    """Give all that is printed of errors: texts, fields, tracebacks with their chains."""
    return "\n".join(
        f"{error} {error!r} {error.args} {getattr(error, 'value', '')} "
        + "".join(traceback.format_exception(error))
        for error in errors
    )


async def live(
    garden: Garden, server: DevServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Lead a whole life with canaries everywhere; give all that is shown of the agent."""
    project, password = "订单系统", garden.plant("password of Redis", arrives=False)
    await execute(admin, "ACL", "SETUSER", "a", "reset", "on", f">{password}", "~*", "&*", "+@all")  # fmt: skip
    monkeypatch.setenv("BLS_REDACT_KEYS", "员工号,-session_id")
    url = f"redis://a:{password}@127.0.0.1:{server.port}/0"
    agent = ProjectAgent(project, redis=url, command_timeout=5.0)
    early = garden.plant("before the agent is opened")
    agent.log.info("early", **{garden.name("员工号"): early})
    handler = BLSHandler(agent)
    logging.getLogger("shop").addHandler(handler)
    try:
        async with agent:
            await agent.ready(5)
            for log in (log_metadata, log_messages, log_exceptions):
                log(garden, agent)
            await run_commands(garden, agent, admin, project)
            shown = f"{agent!r} {agent.stats()!r} {asdict(agent.stats())}"
            assert await agent.flush()
            assert not agent.stats().logs_not_encoded
            assert not agent.stats().faults
    finally:
        logging.getLogger("shop").removeHandler(handler)
    wrong = garden.plant("wrong password", arrives=False)
    async with Console(url.replace(password, wrong)) as console:
        with garden.catching(RedisRefusedError):
            await console.logs(project)
    misconfigure(garden, monkeypatch)
    return shown + repr(agent) + told_by(garden.errors)


async def test_no_canary_leaves_the_process(
    own_server: DevServer,
    admin: Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Neither Redis nor logs, output, reprs and tracebacks hold a piece of a secret."""
    garden = Garden(secret=True)
    with caplog.at_level(logging.DEBUG):
        shown = await live(garden, own_server, admin, monkeypatch)
    assert len(garden.planted) >= LEAST
    ours = [record for record in caplog.records if record.name != "shop.canaries"]
    printed = capfd.readouterr()
    places = {
        "Redis": await everything_in(admin),
        "the host's log": "\n".join(map(logging.Formatter().format, ours)),
        "output": printed.out + printed.err,
        "what is shown": shown,
    }
    assert ours
    leaks = {
        (place, where)
        for place, canary in garden.planted.items()
        for where, text in places.items()
        if canary[:KNOWN_BY] in text
    }
    assert not leaks


async def test_what_is_no_secret_arrives(
    own_server: DevServer, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same things under harmless names are all in Redis: nothing else was held back."""
    garden = Garden(secret=False)
    await live(garden, own_server, admin, monkeypatch)
    text = await everything_in(admin)
    missing = {
        place
        for place, canary in garden.planted.items()
        if canary not in text and place not in garden.private
    }
    assert not missing
    assert len(garden.planted) - len(garden.private) >= LEAST


async def test_a_server_that_quotes_the_password_is_not_quoted() -> None:
    """Redis echoes the arguments of an unknown command; of AUTH they are the password."""
    canary = f"k{secrets.token_hex(9)}"
    options = ("--rename-command", "AUTH", "")
    with DevServer(options=options) as server:
        url = f"redis://a:{canary}@127.0.0.1:{server.port}/0"
        async with Console(url) as console:
            with pytest.raises(BlsError) as caught, anyio.fail_after(10):
                await console.logs("订单系统")
    assert caught.value.kind == "unknown_command"  # type: ignore[attr-defined]
    assert canary not in told_by([caught.value])
