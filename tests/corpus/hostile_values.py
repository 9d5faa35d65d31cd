"""Values in odd forms that other programs may write into keys of the protocols."""

from __future__ import annotations

from redis.asyncio import Redis

from bls_agent.project.status.intake import intake_key
from tests.harness import execute

PROJECT = "订单系统"
DEEP = "[" * 1_000 + "]" * 1_000  # orjson reads up to 1,024 levels
REPORT = '{"status":"failed","created":[],"updated":[],"deleted":[],"kept":[],"broken":[],%s}'
KEYS: list[tuple[object, ...]] = [
    ("SET", f"{PROJECT}_项目状态", "在线", "EX", 60),
    (
        "HSET", intake_key(PROJECT),
        "a", '{"state":"paused","until":9e18,"since":1e20,"inHand":1e300}',
        "b", f'{{"state":"paused","until":9e18,"reason":{DEEP}}}',
        "c", f'{{"state":{DEEP},"until":9e18}}',
    ),
    ("RPUSH", f"{PROJECT}_控制", f'{{"command":"x","id":{DEEP}}}', f'{{"command":"x","id":{DEEP}}}'),
    ("SET", "heartbeat:x:1", f'{{"status":"running","a":{DEEP},"task_uuids":[{DEEP}]}}', "EX", 60),
    ("ZADD", "crawlo:新闻:queue:requests", 0, "a"),
    ("HSET", "bls_agent:{crawlo:新闻:queue:requests}:counters", "pushed", "9" * 5_000, "taken", "9" * 400),
    ("HSET", "asset:sync:state", "sync_status", "failed"),
    ("SET", "bls_agent:{asset:sync:state}:report", REPORT % '"source":null,"reason":5'),
    ("RPUSH", f"{PROJECT}_项目控制台", f'{{"level":"info","message":"深","metadata":{{"x":{DEEP}}}}}'),
]  # fmt: skip


async def plant(admin: Redis) -> None:
    for words in KEYS:
        await execute(admin, *words)
