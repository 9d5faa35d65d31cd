"""An agent in plain redis-py, written from the document alone, with a flaw to order.

Started as a program: ``python flawed.py [FLAW]``. Without a flaw, the agent is right.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

FLAW = sys.argv[1] if len(sys.argv) > 1 else ""
OUTCOMES: dict[str, Any] = {
    "errors as texts": "boom",
    "names of fields as a number": {"fields": 5},
    "names of fields of two types": {"fields": ["count", 5]},
}
PROJECT = os.environ["BLS_PROJECT"]
STATUS, LOG, CONTROL = (
    f"{PROJECT}_{name}" for name in ("项目状态", "项目控制台", "控制")
)


class Agent:
    def __init__(self) -> None:
        self.client: Any = redis.Redis.from_url(
            os.environ["BLS_REDIS_URL"],
            socket_timeout=3600 if FLAW == "waits for ever" else 2.5,
            retry=Retry(NoBackoff(), 0),
            # A pool would replace a connection that was lost between two commands.
            single_connection_client=FLAW == "dies of a lost connection",
        )
        self.taken = 0
        self.said = False

    def say(self, status: str) -> None:
        lasting = FLAW == "status without TTL"
        if FLAW != "no status":
            word = "online" if FLAW == "status in English" else status
            self.client.set(STATUS, word, ex=None if lasting else 60)

    def log(self, level: str, message: str) -> None:
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        record: Any = {
            "timestamp": "yesterday" if FLAW == "odd timestamps" else stamp,
            "level": level.upper() if FLAW == "levels in capitals" else level,
            "message": message if FLAW == "long records" else message[:1000],
        }
        if FLAW == "levels in a list":
            record["level"] = [level]
        if FLAW in OUTCOMES:
            error = OUTCOMES[FLAW]
            record["metadata"] = {"outcome": "rejected", "error": error}
        line = json.dumps(record, ensure_ascii=False)
        if FLAW == "records that are no JSON":
            line = message
        if FLAW == "newest first":
            self.client.lpush(LOG, line)
        elif FLAW == "log as a string":
            self.client.append(LOG, line)
        else:
            self.client.rpush(LOG, line)

    def take(self) -> bytes | None:
        if FLAW == "takes the newest":
            popped = self.client.brpop(CONTROL, 1)
        elif FLAW == "reads and never trims":
            found: list[bytes] = self.client.lrange(CONTROL, 0, 0)
            time.sleep(0 if found else 0.05)
            return found[0] if found else None
        elif FLAW == "stumbles over malformed messages":
            found = self.client.lrange(CONTROL, 0, 0)
            if not found:
                time.sleep(0.05)
                return None
            json.loads(found[0])["command"]
            self.client.ltrim(CONTROL, 1, -1)
            return found[0]
        else:
            popped = self.client.blpop(CONTROL, 1)
        return popped[1] if popped else None

    def run(self, payload: bytes) -> None:
        self.taken += 1
        try:
            if FLAW == "reads ASCII":
                payload.decode("ascii")
            command = json.loads(payload)
            name, args = command["command"], command.get("args") or {}
            if FLAW == "refuses unknown fields":
                assert set(command) <= {"id", "timestamp", "source", "command", "args"}
            word = args.get("word")
        except Exception as error:
            if FLAW == "dies of malformed messages":
                raise
            if FLAW != "hides malformed messages":
                self.log("error", f"bad message: {error!r}")
            return
        if name == "echo":
            for _ in range(2 if FLAW == "runs twice" and self.taken % 3 == 0 else 1):
                if FLAW != "loses commands" or self.taken % 3:
                    self.log("info", f"echo {word} {args}")
        elif FLAW == "dies of unknown commands":
            raise KeyError(name)

    def live(self) -> None:
        if FLAW == "clears its commands":
            self.client.delete(CONTROL)
        while True:
            try:
                if FLAW != "status once" or not self.said:
                    self.say("在线")
                    self.said = True
                payload = self.take()
                if payload is not None:
                    self.run(payload)
            except redis.RedisError:
                if FLAW == "dies of a lost connection":
                    raise
                if FLAW == "tries to reconnect once":
                    time.sleep(0.5)
                    self.client.ping()
                time.sleep(0.2)
            except (ValueError, TypeError, KeyError):
                if FLAW != "stumbles over malformed messages":
                    raise
                time.sleep(0.1)


def stop(*_: object) -> None:
    if FLAW != "leaves without a word":
        agent.say("离线")
    os._exit(0)


agent = Agent()
if FLAW != "ignores SIGTERM":
    signal.signal(signal.SIGTERM, stop)
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
agent.live()
