"""The standard library's logging on the console, beside the usual output.

Shows: a dictConfig with BLSHandler, extra fields, an exception with its traceback, a
critical record, metadata bound to a log. What is logged before the agent opens waits.
Needs: ``pip install .`` and a Redis at ``BLS_REDIS_URL`` (default
redis://127.0.0.1:6379/0; ``python -m bls_agent.devserver`` starts one).
Run:   ``python examples/logging_setup.py [project]``, Ctrl-C ends it in order. Read it
from another terminal with ``python examples/follow_console.py [project]``.
"""

from __future__ import annotations

import logging.config
import sys

import anyio

from bls_agent import ProjectAgent

agent = ProjectAgent(sys.argv[1] if len(sys.argv) > 1 else "订单系统")
logger = logging.getLogger("shop.orders")
stock = {"茶": 2}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(levelname)-8s %(name)s: %(message)s"}},
    "handlers": {
        "terminal": {
            "class": "logging.StreamHandler",
            "formatter": "line",
            "stream": "ext://sys.stdout",
        },
        "console": {"()": "bls_agent.BLSHandler", "agent": "ext://__main__.agent"},
    },
    "root": {"level": "INFO", "handlers": ["terminal", "console"]},
}


def accept(order: int, goods: str) -> None:
    try:
        stock[goods] -= 1
    except KeyError:
        logger.exception("order %s failed", order, extra={"商品": goods})
    else:
        logger.info("order %s accepted", order, extra={"商品": goods})


if __name__ == "__main__":
    logging.config.dictConfig(LOGGING)
    accept(17, "茶")
    accept(18, "咖啡")
    logger.critical("the payment gateway is gone")
    agent.log.bind(worker="w-1").warn("stock is low", left=stock)  # without logging
    anyio.run(agent.run)
