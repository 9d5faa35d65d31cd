"""The standard library's logging in the console list: what lands where, and no waiting."""

from __future__ import annotations

import logging
import logging.handlers
import os
import queue
import re
import sys
import threading
import time
import weakref
from collections import Counter
from pathlib import Path
from typing import Any, cast

import anyio
import orjson
import pytest
from redis.asyncio import Redis

import bls_agent
from bls_agent import BLSHandler, ConfigurationError, Console, OutcomeKind, ProjectAgent
from bls_agent.project.log.log import CURRENT_COMMAND, CurrentCommand
from tests.harness import records, unsent_records
from tests.programs import run_python

DEADLINE = 10.0  # seconds, for what should take no time


@pytest.fixture
def agent() -> ProjectAgent:
    """An agent that is never opened: what it would ship can be looked at."""
    return ProjectAgent("订单系统")


@pytest.fixture
def handler(agent: ProjectAgent) -> BLSHandler:
    return BLSHandler(agent)


@pytest.fixture
def logger(handler: BLSHandler) -> logging.Logger:
    return logger_with(handler)


def logger_with(handler: logging.Handler, name: str = "shop.orders") -> logging.Logger:
    """A logger without a parent."""
    logger = logging.Logger(name, level=1)  # noqa: LOG001 - nothing of it is left behind
    logger.addHandler(handler)
    return logger


def only(agent: ProjectAgent) -> dict[str, Any]:
    """Take the one record that waits."""
    (record,) = unsent_records(agent)
    return record


def refused(agent: ProjectAgent) -> dict[str, int]:
    return agent.stats().logs_not_encoded


# --- what lands where


@pytest.mark.parametrize(
    ("number", "level", "severity"),
    [
        (5, "debug", None),
        (10, "debug", None),
        (19, "debug", None),
        (20, "info", None),
        (25, "info", None),
        (29, "info", None),
        (30, "warn", None),
        (39, "warn", None),
        (40, "error", None),
        (49, "error", None),
        (50, "error", "CRITICAL"),
        (70, "error", "Level 70"),
    ],
)
def test_levels(
    agent: ProjectAgent,
    logger: logging.Logger,
    number: int,
    level: str,
    severity: str | None,
) -> None:
    """Each level becomes one of the four; CRITICAL can still be told from ERROR."""
    logger.log(number, "x")
    record = only(agent)
    assert record["level"] == level
    assert record["metadata"].get("severity") == severity


def test_a_plain_record(agent: ProjectAgent, logger: logging.Logger) -> None:
    """Message and logger, and nothing else."""
    logger.info("order %s accepted", 17)
    record = only(agent)
    assert record["message"] == "order 17 accepted"
    assert record["metadata"] == {"logger": "shop.orders"}


def test_the_time_is_the_records_own(agent: ProjectAgent, handler: BLSHandler) -> None:
    """A record that was made elsewhere, earlier, keeps its time."""
    given = {"msg": "late", "levelno": 20, "created": 1768221296.789}
    handler.handle(logging.makeLogRecord(given))
    assert only(agent)["timestamp"] == "2026-01-12T12:34:56.789Z"


def test_extra_fields(agent: ProjectAgent, logger: logging.Logger) -> None:
    """Whatever is on the record beside what every record has, Chinese names too."""
    goods = ["茶"]
    extra: dict[Any, object] = {"商品": goods, "count": 2, 7: "seven", "who": object}
    logger.info("x", extra=extra)
    goods.append("later")
    assert only(agent)["metadata"] == {
        "logger": "shop.orders",
        "商品": ["茶"],
        "count": 2,
        "7": "seven",
        "who": "<class 'object'>",
    }


def test_extra_fields_after_a_formatter_was_there_first(
    agent: ProjectAgent, handler: BLSHandler
) -> None:
    """What another handler's formatter left on the record is no extra."""
    first = logging.StreamHandler(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - closed below
    first.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logger_with(first)
    logger.addHandler(handler)
    logger.info("x", extra={"n": 1})
    first.stream.close()
    assert only(agent)["metadata"] == {"logger": "shop.orders", "n": 1}


def test_an_extra_with_a_name_of_ours(
    agent: ProjectAgent, logger: logging.Logger
) -> None:
    """It gets an underscore, so neither is lost and ours always means the same."""
    names = ["logger", "severity", "exception", "stack", "arguments"]
    names += ["agent", "outcome", "truncated", "logger_"]
    logger.info("x", extra={name: f"my {name}" for name in names})
    metadata = only(agent)["metadata"]
    assert metadata.pop("logger") == "shop.orders"
    assert metadata.pop("logger__") == "my logger"
    assert metadata.pop("logger_") == "my logger_"
    assert metadata == {f"{name}_": f"my {name}" for name in names[1:-1]}


def test_attributes_of_a_filter_and_of_an_adapter(
    agent: ProjectAgent, handler: BLSHandler
) -> None:
    """Context that a filter or a LoggerAdapter adds is shipped like extras."""

    def add_context(record: logging.LogRecord) -> bool:
        record.请求 = "r-1"
        return True

    handler.addFilter(add_context)
    adapter = logging.LoggerAdapter(logger_with(handler), {"worker": "w-1"})
    adapter.warning("slow")
    assert only(agent)["metadata"] == {
        "logger": "shop.orders",
        "worker": "w-1",
        "请求": "r-1",
    }


def fail() -> None:
    raise ValueError("库存不足")


def test_an_exception(agent: ProjectAgent, logger: logging.Logger) -> None:
    """Type, message and traceback, as of agent.log.exception."""
    try:
        fail()
    except ValueError as error:
        logger.exception("order failed")
        logger.info("given", exc_info=error)
    for record in unsent_records(agent):
        told = record["metadata"]["exception"]
        assert (told["type"], told["message"]) == ("ValueError", "库存不足")
        assert "in fail" in told["traceback"]


def test_an_exception_outside_of_an_except_block(
    agent: ProjectAgent, handler: BLSHandler
) -> None:
    """There is none, even if a formatter wrote ``NoneType: None`` onto the record."""
    record = logging.makeLogRecord({"msg": "x", "levelno": 40, "name": "shop"})
    record.exc_info = (None, None, None)
    logging.Formatter().format(record)
    handler.handle(record)
    assert only(agent)["metadata"] == {"logger": "shop"}


def test_the_text_of_an_exception(agent: ProjectAgent, handler: BLSHandler) -> None:
    """A record from another process has the text alone; its end is what is kept."""
    text = "Traceback:\n" + "  frame\n" * 5_000 + "ValueError: 库存不足"
    fields = {"msg": "x", "levelno": 40, "name": "shop", "exc_text": text}
    handler.handle(logging.makeLogRecord(fields))
    told = only(agent)["metadata"]["exception"]
    assert list(told) == ["traceback"]
    assert told["traceback"].endswith("ValueError: 库存不足")
    assert len(told["traceback"]) < 17_000


def test_the_stack(agent: ProjectAgent, logger: logging.Logger) -> None:
    """``stack_info=True`` ships where the call was."""
    logger.info("here", stack_info=True)
    assert "in test_the_stack" in only(agent)["metadata"]["stack"]


# --- messages


class Nasty:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


@pytest.mark.parametrize(
    ("message", "arguments", "text", "told"),
    [
        ("order %s of %s", (17,), "order %s of %s", [17]),
        ("order %d", ("x", "y"), "order %d", ["x", "y"]),
        ("no place", (1,), "no place", [1]),
        ("%(missing)s", ({"a": 1},), "%(missing)s", {"a": 1}),
        ("100%", ("x",), "100%", ["x"]),
        (
            "%s",
            (Nasty(),),
            "%s",
            ["<Nasty, whose repr raised RuntimeError>"],
        ),
    ],
)
def test_arguments_that_do_not_fit(
    agent: ProjectAgent,
    logger: logging.Logger,
    capsys: pytest.CaptureFixture[str],
    message: str,
    arguments: tuple[object, ...],
    text: str,
    told: object,
) -> None:
    """The raw text and the arguments are shipped; nothing is printed or raised."""
    logger.info(message, *arguments)
    record = only(agent)
    assert record["message"] == text
    assert record["metadata"]["arguments"] == told
    assert capsys.readouterr() == ("", "")


def test_a_message_that_is_no_text(agent: ProjectAgent, logger: logging.Logger) -> None:
    """Anything can be logged."""
    logger.info({"订单": 1})
    logger.info(Nasty())
    texts = [record["message"] for record in unsent_records(agent)]
    assert texts == ["{'订单': 1}", "<Nasty, whose str raised RuntimeError>"]


def test_a_formatter(agent: ProjectAgent, handler: BLSHandler) -> None:
    """Its text is the message; one that raises is passed over."""
    logger = logger_with(handler)
    handler.setFormatter(logging.Formatter("[%(levelname)s] %(message)s"))
    logger.info("order %s", 17)
    assert only(agent)["message"] == "[INFO] order 17"
    handler.setFormatter(logging.Formatter("%(customer)s %(message)s"))
    logger.info("order %s", 18)
    logger.info("order %s", extra={"customer": "王"})
    assert [r["message"] for r in unsent_records(agent)] == ["order 18", "王 order %s"]


# --- what is left out


@pytest.mark.parametrize(
    ("name", "ignored"),
    [
        ("bls_agent", True),
        ("bls_agent.project.log.log", True),
        ("redis", True),
        ("redis.asyncio", True),
        ("redistribution", False),
        ("bls_agent_service", False),
        ("shop.redis", False),
        ("root", False),
        ("", False),
    ],
)
def test_ignored_loggers(
    agent: ProjectAgent, handler: BLSHandler, name: str, ignored: bool
) -> None:
    """What we and our client say is not shipped; names that only look alike are."""
    logger_with(handler, name).error("x")
    assert len(unsent_records(agent)) == (0 if ignored else 1)
    assert not refused(agent)


def test_both_levels_apply(agent: ProjectAgent, logger: logging.Logger) -> None:
    """The agent's log_level beside the handler's own; what is left out is not formatted."""
    made: list[str] = []

    class Seen:
        def __str__(self) -> str:
            made.append("made")
            return "seen"

    agent._state.stream.set_level(bls_agent.Level.WARN)
    logger.info("no %s", Seen())
    assert not made
    logger.warning("yes")
    logger.handlers[0].setLevel("ERROR")
    logger.warning("no")
    assert only(agent)["message"] == "yes"


def test_a_filter(agent: ProjectAgent, logger: logging.Logger) -> None:
    """A filter keeps records back; so does one that raises, which is counted."""
    handler = cast("BLSHandler", logger.handlers[0])
    handler.addFilter(lambda record: record.levelno > 20)
    logger.info("no")
    logger.error("yes")
    assert only(agent)["message"] == "yes"

    def broken(record: logging.LogRecord) -> bool:
        raise LookupError(record.name)

    handler.addFilter(broken)
    logger.error("secret")
    assert unsent_records(agent) == []
    assert refused(agent) == {"LookupError": 1}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="filters only judge there")
def test_a_filter_that_replaces_the_record(
    agent: ProjectAgent, logger: logging.Logger
) -> None:
    """Since Python 3.12 a filter may give another record to be shipped."""

    def redact(record: logging.LogRecord) -> Any:
        return logging.makeLogRecord({**vars(record), "msg": "***", "args": None})

    logger.handlers[0].addFilter(redact)
    logger.info("password %s", "geheim")
    assert only(agent)["message"] == "***"


# --- recursion


def test_a_repr_that_logs(agent: ProjectAgent, handler: BLSHandler) -> None:
    """It ends after two levels, and what was left out is counted."""

    class Chatty:
        def __repr__(self) -> str:
            logger_with(handler, "inside").info("me: %r", self)
            return "chatty"

    logger_with(handler).info("outside %r", Chatty())
    assert [record["message"] for record in unsent_records(agent)] == [
        "me: chatty",
        "me: chatty",
        "outside chatty",
    ]
    assert refused(agent) == {"recursion": 1}
    logger_with(handler).info("and on it goes")
    assert only(agent)["message"] == "and on it goes"


def test_a_repr_that_logs_on_both_ways(
    agent: ProjectAgent, handler: BLSHandler
) -> None:
    """Neither do agent.log and the handler send each other round in a circle."""

    class Chatty:
        def __repr__(self) -> str:
            agent.log.info("direct", me=self)
            logger_with(handler, "inside").info("x", extra={"me": self})
            return "chatty"

    logger_with(handler).info("outside", extra={"me": Chatty()})
    assert unsent_records(agent)[-1]["message"] == "outside"
    assert refused(agent)["recursion"] > 0


# --- nobody waits


class Waiting:
    """Its text takes until it is told to come."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.go = threading.Event()

    def __str__(self) -> str:
        self.asked.set()
        assert self.go.wait(DEADLINE)
        return "at last"


def test_no_lock(agent: ProjectAgent, handler: BLSHandler) -> None:
    """While one thread is in the midst of a record, others log, flush, close, shut down."""
    assert handler.lock is None
    slow = Waiting()
    stuck = threading.Thread(target=logger_with(handler).info, args=("%s", slow))

    def go_on() -> None:
        logger_with(handler).info("meanwhile")
        handler.flush()
        handler.close()
        logging.shutdown([weakref.ref(handler)])
        logger_with(handler).info("closed, and goes on")

    other = threading.Thread(target=go_on, daemon=True)
    stuck.start()
    assert slow.asked.wait(DEADLINE)
    other.start()
    other.join(DEADLINE)
    found = [record["message"] for record in unsent_records(agent)]
    slow.go.set()
    stuck.join(DEADLINE)
    assert found == ["meanwhile", "closed, and goes on"]
    assert only(agent)["message"] == "at last"


STRESS = """
import faulthandler, gc, logging, signal, sys, threading, weakref
import anyio
from bls_agent import BLSHandler, ProjectAgent

faulthandler.dump_traceback_later(30, exit=True)  # a deadlock ends here
sys.setswitchinterval(0.00005)
url, project = sys.argv[1:]
agent = ProjectAgent(
    project, redis=url, log_buffer=1_000_000, log_buffer_bytes=1 << 30,
    log_list_limit=1_000_000,
)
root = logging.getLogger()
root.setLevel(logging.DEBUG)
root.addHandler(BLSHandler(agent))

class Mortal:
    def __init__(self):
        self.me = self  # so that only the collector ends it

    def __del__(self):
        logging.getLogger("finaliser").info("gone")

def work(number):
    logger = logging.getLogger(f"worker.{number}")
    watches = []
    for i in range(500):
        watches.append(weakref.ref(Mortal(), on_death))
        logger.info("%s", i, extra={"worker": number, "i": i})

def on_death(_):
    logging.getLogger("weakref").info("gone")

def on_collection(phase, info):
    logging.getLogger("collector").info(phase)

def on_alarm(*_):
    if root.handlers:  # a signal may come after the timer was stopped
        logging.getLogger("signal").warning("tick")
        Mortal()

async def main():
    async with agent:
        gc.callbacks.append(on_collection)
        gc.set_threshold(50)
        signal.signal(signal.SIGALRM, on_alarm)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            logging.getLogger("main").info("still there")
            agent.stats()
            await anyio.sleep(0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.callbacks.clear()
        root.handlers.clear()
        assert await agent.flush(20)
        stats = agent.stats()
        assert not stats.logs_dropped, stats
        print(stats.logs_accepted)

anyio.run(main)
"""


async def test_stress(redis_url: str, redis: Redis, project: str) -> None:
    """Threads, a signal handler, finalisers and the collector log at once: none waits.

    The threads' records are complete and in order, whatever interrupts them.
    """
    ended = run_python("-c", STRESS, redis_url, project, timeout=50)
    assert (ended.code, ended.err) == (0, "")
    found = await records(redis, project)
    assert len(found) == int(ended.out)
    loggers = Counter(record["metadata"]["logger"] for record in found)
    for name in ("finaliser", "weakref", "collector", "signal", "main"):
        assert loggers[name], name
    for number in range(8):
        mine = [r["metadata"] for r in found if r["metadata"].get("worker") == number]
        assert [metadata["i"] for metadata in mine] == list(range(500))


# --- in logging's company


def test_a_queue_in_front(agent: ProjectAgent, handler: BLSHandler) -> None:
    """Behind a QueueHandler all is there; the traceback stands in the message."""
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    logger = logger_with(logging.handlers.QueueHandler(waiting))
    listener = logging.handlers.QueueListener(
        waiting, handler, respect_handler_level=True
    )
    listener.start()
    before = time.time()
    try:
        fail()
    except ValueError:
        logger.exception("order %s failed", 17, extra={"商品": "茶"})
    listener.stop()
    record = only(agent)
    assert record["message"].startswith("order 17 failed\nTraceback")
    assert record["message"].endswith("ValueError: 库存不足")
    assert record["metadata"] == {"logger": "shop.orders", "商品": "茶"}
    assert record["timestamp"] >= time.strftime("%FT%T", time.gmtime(before))


def test_as_last_resort(
    agent: ProjectAgent, handler: BLSHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As logging.lastResort it takes what no other handler would."""
    monkeypatch.setattr(logging, "lastResort", handler)
    orphan = logging.Logger("nobody's")  # noqa: LOG001 - as above
    orphan.warning("heard")
    assert only(agent)["metadata"]["logger"] == "nobody's"


CONFIGURE = """
import json, logging.config, sys
import orjson
import myservice
from bls_agent import BLSHandler, ConfigurationError

config = json.loads(sys.argv[1])
logging.config.dictConfig(config)
(handler,) = [h for h in logging.getLogger().handlers if isinstance(h, BLSHandler)]
assert handler.level == logging.INFO and handler.name == "console"
logging.getLogger("shop").info("order %s", 17)
logging.getLogger("shop").debug("no")
buffer = myservice.agent._state.stream.delivery.buffer
print(*(item.payload.decode() for item in buffer.take(10, 1 << 20)), sep="\\n")

config["handlers"]["console"]["agent"] = "myservice.agent"
try:
    logging.config.dictConfig(config)
except ValueError as error:
    print(repr(error.__cause__))
"""


async def test_a_configuration(tmp_path: Path) -> None:
    """dictConfig with what a JSON file can hold; forgetting ``ext://`` is explained."""
    service = "from bls_agent import ProjectAgent\nagent = ProjectAgent('订单系统')\n"
    (tmp_path / "myservice.py").write_text(service, "utf-8")
    console = {
        "()": "bls_agent.BLSHandler",
        "agent": "ext://myservice.agent",
        "level": "INFO",
        "formatter": "short",
    }
    config = {
        "version": 1,
        "formatters": {"short": {"format": "%(name)s: %(message)s"}},
        "handlers": {"console": console},
        "root": {"level": "DEBUG", "handlers": ["console"]},
    }
    text = orjson.dumps(config).decode()
    ended = run_python("-c", CONFIGURE, text, env={"PYTHONPATH": str(tmp_path)})
    assert (ended.code, ended.err) == (0, "")
    record, error = ended.out.splitlines()
    assert orjson.loads(record)["message"] == "shop: order 17"
    assert error.startswith("ConfigurationError(")
    assert "it must be a ProjectAgent" in error
    assert "ext://" in error


@pytest.mark.parametrize(
    "wrong", [None, "myservice.agent", ProjectAgent, logging.getLogger("shop")]
)
def test_a_wrong_agent_is_refused(wrong: Any) -> None:
    """At construction, with the rule and what to do."""
    with pytest.raises(ConfigurationError, match=r"agent: .*ProjectAgent.*ext://"):
        BLSHandler(wrong)


@pytest.mark.parametrize("wrong", ["LOUD", 2.5, None])
def test_a_wrong_level_is_refused(agent: ProjectAgent, wrong: Any) -> None:
    """So is a level that logging does not know."""
    with pytest.raises(ConfigurationError, match="level"):
        BLSHandler(agent, level=wrong)


# --- agent.log itself


def test_log_exception(agent: ProjectAgent) -> None:
    """Outside of an except block there is nothing to tell, unless it is given."""
    write = agent.log.exception
    write("nothing there")
    write("given", exception=ValueError("库存不足"))
    write("a text", exception="mine")
    try:
        fail()
    except ValueError:
        agent.log.bind(order=7).exception("handled")
    nothing, given, text, handled = unsent_records(agent)
    assert "metadata" not in nothing
    assert given["metadata"]["exception"]["message"] == "库存不足"
    assert text["metadata"] == {"exception": "mine"}
    assert handled["metadata"]["order"] == 7
    assert "in fail" in handled["metadata"]["exception"]["traceback"]
    assert {r["level"] for r in (nothing, given, text, handled)} == {"error"}


def test_log_bind(agent: ProjectAgent) -> None:
    """What is bound last wins, the call's own wins over it; the bound ones stay apart."""
    first = agent.log.bind(a=1, b=1, c=1)
    second = first.bind(b=2, 工位="二")
    second.info("x", a=3)
    first.info("x")
    agent.log.info("x")
    found = [record.get("metadata") for record in unsent_records(agent)]
    assert found == [
        {"a": 3, "b": 2, "c": 1, "工位": "二"},
        {"a": 1, "b": 1, "c": 1},
        None,
    ]


def test_log_write(agent: ProjectAgent) -> None:
    """For other logging libraries: any level, any time."""
    agent.log.bind(a=1).write("WARNING", "x", {"b": 2}, at=0)
    record = only(agent)
    assert (record["level"], record["timestamp"][:4]) == ("warn", "1970")
    assert record["metadata"] == {"a": 1, "b": 2}


def test_the_running_command(agent: ProjectAgent, handler: BLSHandler) -> None:
    """A record carries the command's id; an extra of that name speaks for itself."""
    token = CURRENT_COMMAND.set(CurrentCommand("cmd-1"))
    logger_with(handler).info("x")
    logger_with(handler).info("x", extra={"commandId": "cmd-0"})
    CURRENT_COMMAND.reset(token)
    logger_with(handler).info("x")
    found = [record["metadata"].get("commandId") for record in unsent_records(agent)]
    assert found == ["cmd-1", "cmd-0", None]


# --- end to end

FORM = re.compile(
    r'\{"timestamp":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z","level":"info",'
    r'"message":"order 17 accepted",'
    r'"metadata":\{"agent":"[^"]+#\d+","logger":"shop.orders","商品":"茶"\}\}'
)


async def test_end_to_end(
    redis_url: str, redis: Redis, project: str, console: Console
) -> None:
    """Before it opens, while it runs, inside of commands, after it closed."""
    agent = ProjectAgent(project, redis=redis_url)
    logger = logger_with(BLSHandler(agent))

    @agent.command
    async def count(kind: str) -> str:
        logger.info("counting", extra={"outcome": "failed"})
        return await anyio.to_thread.run_sync(plain, kind)

    def plain(kind: str) -> str:
        logger.critical("in a thread: %s", kind)
        return kind

    agent.command("plain")(plain)
    logger.info("order %s accepted", 17, extra={"商品": "茶"})
    async with agent:
        for name in ("count", "plain"):
            outcome = await console.call(project, name, {"kind": "茶"})
            assert (outcome.kind, outcome.result) == (OutcomeKind.SUCCEEDED, "茶")
        assert await agent.flush()
    logger.info("closed")
    async with agent:
        assert await agent.flush()
        assert not agent.stats().logs_not_encoded
    first = cast("bytes", await redis.lindex(f"{project}_项目控制台", 0))
    assert FORM.fullmatch(first.decode())
    found = [r for r in await records(redis, project) if "logger" in r["metadata"]]
    assert [(r["message"], "commandId" in r["metadata"]) for r in found] == [
        ("order 17 accepted", False),
        ("counting", True),
        ("in a thread: 茶", True),
        ("in a thread: 茶", True),
        ("closed", False),
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1m\x1b[31mWARNING: a development server\x1b[0m", "WARNING: a development server"),
        ('\x1b[35m"GET / HTTP/1.1" 500\x1b[39;49m', '"GET / HTTP/1.1" 500'),
        ("\x1b[38:5:208morange\x1b[m", "orange"),
        ("other \x1b[2J escapes", "other \x1b[2J escapes"),
    ],
    ids=["werkzeug", "default colours", "256 colours", "no colour"],
)  # fmt: skip
def test_colours_are_left_out(
    agent: ProjectAgent, logger: logging.Logger, text: str, shown: str
) -> None:
    """What only colours a terminal is no part of a record: neither message nor extra."""
    logger.info("%s", text, extra={"color_message": text, "n": 1})
    (record,) = unsent_records(agent)
    assert record["message"] == shown
    assert record["metadata"]["color_message"] == shown
    assert record["metadata"]["n"] == 1


def test_under_pytest_the_handler_is_added(
    agent: ProjectAgent, handler: BLSHandler, caplog: pytest.LogCaptureFixture
) -> None:
    """The root logger has handlers there: basicConfig does nothing, addHandler works."""
    root = logging.getLogger()
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    assert handler not in root.handlers
    root.addHandler(handler)
    try:
        logging.getLogger("shop").warning("shipped")
    finally:
        root.removeHandler(handler)
    assert [record["message"] for record in unsent_records(agent)] == ["shipped"]
    assert "shipped" in caplog.text
