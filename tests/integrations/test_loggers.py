"""structlog and loguru in the console list: what lands where, and no loop."""

from __future__ import annotations

import inspect
import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import loguru
import pytest
import structlog

from bls_agent import ConfigurationError, ProjectAgent
from bls_agent.integrations.loguru import loguru_sink
from bls_agent.integrations.structlog import BLSProcessor
from bls_agent.project.log.log import CURRENT_COMMAND, CurrentCommand
from tests.documents import blocks, run_block
from tests.harness import unsent_records


@pytest.fixture
def agent() -> ProjectAgent:
    """An agent that is never opened: its records wait in the buffer."""
    return ProjectAgent("订单系统")


def only(agent: ProjectAgent) -> dict[str, Any]:
    (record,) = unsent_records(agent)
    return record


# --- structlog


@pytest.fixture
def passed() -> list[dict[str, Any]]:
    """The events that the processor has passed on."""
    return []


@pytest.fixture
def log(agent: ProjectAgent, passed: list[dict[str, Any]]) -> Any:
    """A logger of structlog with the processor at the end."""

    def keep(_logger: object, _name: str, event: Any) -> Any:
        passed.append(event)
        raise structlog.DropEvent

    chain: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        BLSProcessor(agent),
        keep,
    ]
    bound = structlog.wrap_logger(
        None, chain, wrapper_class=structlog.make_filtering_bound_logger(0)
    )
    return bound.bind(商品="茶")


def test_structlog_passes_the_event_on(
    agent: ProjectAgent, log: Any, passed: list[dict[str, Any]]
) -> None:
    """The event is sent with its bound keys, and not changed for what follows."""
    log.bind(agent="甲").warning("stock is \x1b[31mlow\x1b[0m", left=3, who="\x1b[1m乙")
    record = only(agent)
    assert (record["level"], record["message"]) == ("warn", "stock is low")
    assert record["metadata"] == {"agent_": "甲", "商品": "茶", "left": 3, "who": "乙"}
    (event,) = passed
    assert event.pop("timestamp")
    assert event == {
        "agent": "甲", "商品": "茶", "left": 3, "who": "\x1b[1m乙",
        "event": "stock is \x1b[31mlow\x1b[0m", "level": "warning",
    }  # fmt: skip


@pytest.mark.parametrize("formats", [False, True], ids=["exc_info", "its text"])
def test_structlog_exceptions(agent: ProjectAgent, formats: bool) -> None:
    """The exception object, or only its text if the processor comes too late."""
    first: list[Any] = [structlog.processors.format_exc_info] if formats else []
    chain = [*first, BLSProcessor(agent), structlog.processors.JSONRenderer()]
    log = structlog.wrap_logger(structlog.testing.ReturnLogger(), chain)
    try:
        raise ValueError("no tea")
    except ValueError as error:
        log.exception("failed", exc_info=True)
        log.critical("failed", exc_info=error)
        log.error("failed", exc_info=1)
    severities = (None, "CRITICAL", None)
    for record, severity in zip(unsent_records(agent), severities, strict=True):
        assert record["level"] == "error"
        assert record["metadata"].get("severity") == severity
        found = record["metadata"]["exception"]
        assert found.get("type") == (None if formats else "ValueError")
        assert "ValueError: no tea" in found["traceback"]


def test_structlog_in_front_of_logging(agent: ProjectAgent) -> None:
    """A record of logging arrives through ProcessorFormatter, but none of our own."""
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processor=structlog.dev.ConsoleRenderer(),
            foreign_pre_chain=[BLSProcessor(agent)],
        )
    )
    for name in ("bls_agent.connection", "redis", "werkzeug"):
        logger = logging.Logger(name)  # noqa: LOG001 - nothing of it is left behind
        logger.addHandler(handler)
        logger.error("\x1b[31mGET\x1b[0m %s", "/")
    record = only(agent)
    assert (record["level"], record["message"]) == ("error", "GET /")
    assert record["metadata"] == {"logger": "werkzeug"}


# --- loguru


@pytest.fixture
def logger(agent: ProjectAgent) -> Iterator[Any]:
    """The logger of loguru with the sink alone."""
    loguru.logger.remove()
    number = loguru.logger.add(loguru_sink(agent), level=0, catch=False)
    yield loguru.logger
    if number in loguru.logger._core.handlers:  # type: ignore[attr-defined]
        loguru.logger.remove(number)


def test_loguru_levels(agent: ProjectAgent, logger: Any) -> None:
    """Every level of loguru has its level here; the highest keep their name."""
    for name in ("TRACE", "DEBUG", "INFO", "SUCCESS", "WARNING", "ERROR", "CRITICAL"):
        logger.log(name, "茶")
    found = unsent_records(agent)
    levels = ["debug", "debug", "info", "info", "warn", "error", "error"]
    assert [record["level"] for record in found] == levels
    assert found[-1]["metadata"] == {"logger": __name__, "severity": "CRITICAL"}
    assert found[0]["metadata"] == {"logger": __name__}


def test_loguru_fields_and_exceptions(agent: ProjectAgent, logger: Any) -> None:
    """The record's own message without colours, its fields, exception and time."""
    bound = logger.bind(商品="茶", outcome=1).opt(colors=True)
    try:
        raise ValueError("no tea")
    except ValueError:
        bound.exception("<red>\x1b[1m{}</red> left", 3)
    record = only(agent)
    assert (record["level"], record["message"]) == ("error", "3 left")
    assert record["metadata"]["商品"] == "茶"
    assert record["metadata"]["outcome_"] == 1
    assert record["metadata"]["exception"]["type"] == "ValueError"


def test_loguru_behind_logging(agent: ProjectAgent, logger: Any) -> None:
    """With the handler of loguru's manual: records of the agent itself are not sent."""

    class Intercept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            frame, depth = inspect.currentframe(), 0
            while frame and (not depth or frame.f_code.co_filename == logging.__file__):
                frame, depth = frame.f_back, depth + 1
            logger.opt(depth=depth).log(record.levelname, record.getMessage())

    source = logging.Logger("source")  # noqa: LOG001 - nothing of it is left behind
    source.addHandler(Intercept())
    for module in ("bls_agent.connection.reconnect", "redis.client", "uvicorn.error"):
        exec("source.error('down')", {"__name__": module, "source": source})
    assert only(agent)["metadata"] == {"logger": "uvicorn.error"}


# --- both


async def test_the_code_of_the_page_runs(
    logger: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each block is a program of its own; structlog also renders the event, as before."""
    logger.remove()  # the page adds a sink
    page = Path(__file__).parents[2] / "docs/logging.md"
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logged: list[list[dict[str, Any]]] = []
    try:
        for block in blocks(page)[1:]:  # the first one is run in tests/test_docs.py
            names: dict[str, Any] = {"__name__": "shop"}
            await run_block(block, names)
            logged.append(unsent_records(names["agent"]))
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()
        sinks = [*logger._core.handlers]
        for sink in sinks:
            logger.remove(sink)
    (bound, failed), nothing, [event], [message], names_only = logged
    assert bound["metadata"] == {"worker": "w-1", "left": 3}
    assert failed["metadata"]["exception"]["type"] == "ValueError"
    assert (event["message"], message["message"]) == (
        "order accepted",
        "order 17 accepted",
    )
    assert event["metadata"] == {"order": 17, "商品": "茶"}
    assert message["metadata"] == {"order": 17, "logger": "shop"}
    assert nothing == names_only == []
    assert "order accepted" in capsys.readouterr().out


@pytest.mark.parametrize("make", [BLSProcessor, loguru_sink])
def test_a_wrong_agent_is_refused(make: Callable[[Any], object]) -> None:
    with pytest.raises(ConfigurationError, match="ProjectAgent"):
        make(logging.getLogger())


def test_they_never_raise(agent: ProjectAgent, log: Any, logger: Any) -> None:
    """Whatever a value does: a broken one is counted, a text stands in for others."""

    class Bad:
        def __str__(self) -> str:
            raise RuntimeError("no text")

        def __repr__(self) -> str:
            log.info("inside", again=self)
            raise RuntimeError("no text")

    log.info(Bad(), value=Bad())
    logger.bind(value=Bad()).info("茶")
    assert {"茶"} <= {record["message"] for record in unsent_records(agent)}
    BLSProcessor(agent)(None, "info", None)  # type: ignore[arg-type]
    counts = agent.stats().logs_not_encoded
    assert counts["AttributeError"] == 1
    assert counts["recursion"] >= 1


def test_level_and_command(agent: ProjectAgent, log: Any, logger: Any) -> None:
    """The agent's level applies, and the running command is named."""
    agent._state.stream.set_level(agent._state.stream.level.WARN)
    token = CURRENT_COMMAND.set(CurrentCommand("c-1"))
    try:
        log.info("silent")
        logger.info("silent")
        log.error("one")
        logger.error("two")
    finally:
        CURRENT_COMMAND.reset(token)
    found = [
        (one["message"], one["metadata"]["commandId"]) for one in unsent_records(agent)
    ]
    assert found == [("one", "c-1"), ("two", "c-1")]
