"""An agent in Python without this package: ``pip install redis``.

Run: ``BLS_PROJECT=订单系统 BLS_REDIS_URL=redis://127.0.0.1:6379/0 python agent.py``
"""

# pyright: basic, reportUnknownMemberType=false
from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import redis

PROJECT = os.environ.get("BLS_PROJECT", "订单系统")
STATUS, LOG, CONTROL = (
    f"{PROJECT}_{end}" for end in ("项目状态", "项目控制台", "控制")
)
# A reply that does not come within 10 s means that the connection is dead.
client: Any = redis.Redis.from_url(
    os.environ.get("BLS_REDIS_URL", "redis://127.0.0.1:6379/0"), socket_timeout=10
)
stopping = threading.Event()


def echo(word: str = "", **_: Any) -> None:
    log("info", f"echo {word}")


def reload(force: bool = False) -> dict[str, int]:
    log("info", "configuration reloaded", {"force": force})
    return {"rules": 42}


HANDLERS: dict[str, Callable[..., Any]] = {"echo": echo, "reload": reload}


def log(level: str, message: str, metadata: dict[str, Any] | None = None) -> None:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    record: dict[str, Any] = {
        "timestamp": now,
        "level": level,
        "message": message[:4000],
    }
    if metadata:
        record["metadata"] = metadata
    with client.pipeline(transaction=True) as pipe:
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
        pipe.rpush(
            LOG, line.encode("utf-8", "replace")
        )  # JSON may hold lone surrogates
        pipe.ltrim(LOG, -10_000, -1)
        pipe.execute()


def decode(payload: bytes) -> dict[str, Any]:
    command: Any = json.loads(payload)
    if not isinstance(command, dict) or not isinstance(command["command"], str):
        raise TypeError("no command")
    command["args"] = args = command.get("args") or {}
    if not isinstance(args, dict):
        raise TypeError("bad args")
    return command


def run(payload: bytes) -> None:
    try:
        command = decode(payload)
    except Exception as error:  # also a RecursionError
        log("error", f"message discarded: {type(error).__name__}")
        return
    name, began = command["command"], time.monotonic()
    end: dict[str, Any] = {
        "outcome": "unknown",
        "error": {"type": "UnknownCommandError"},
    }
    try:
        if name in HANDLERS:
            result = HANDLERS[name](**command["args"])
            end = {"outcome": "succeeded", "result": result}
    except redis.RedisError:
        raise
    except Exception as error:
        end = {
            "outcome": "failed",
            "error": {"type": type(error).__name__, "message": str(error)[:4000]},
        }
    level = {"succeeded": "info", "unknown": "warn", "failed": "error"}[end["outcome"]]
    milliseconds = round((time.monotonic() - began) * 1000, 3)
    about = {"commandId": str(command.get("id", ""))[:1000], "command": name[:1000]}
    log(level, f"command {end['outcome']}", about | {"durationMs": milliseconds} | end)


def refresh() -> None:
    while not stopping.wait(8):
        with suppress(redis.RedisError):  # the next refresh comes in 8 s
            client.set(STATUS, "在线", ex=60)


def stop(*_: object) -> None:
    stopping.set()


for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, stop)
threading.Thread(target=refresh, daemon=True).start()
client.set(STATUS, "在线", ex=60)
while not stopping.is_set():
    try:
        taken = client.blpop(CONTROL, 1)  # never without a time limit
        if taken is not None:
            run(taken[1])
    except redis.RedisError:
        time.sleep(0.3)  # the next call connects again
client.set(STATUS, "离线")  # without EX: the last word stays
