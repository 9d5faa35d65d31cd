"""One planted fault for every rule about keys: which requests plant it, and where."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TypeAlias

import orjson

from bls_agent.core.keys import KEYS, RedisType
from bls_agent.ops.doctor.rules.table import FAR, TTL_ADVISED, TTL_OPEN
from bls_agent.workers.heartbeat_fields import KINDS
from tests.corpus.loader import sound_heartbeats

Words: TypeAlias = tuple[object, ...]


PROJECT = "订单系统"
STATUS, CONSOLE, CONTROL = (
    f"{PROJECT}_{s}" for s in ("项目状态", "项目控制台", "控制")
)
PLACE = f"bls_agent:{{{CONTROL}}}"
RUN, RUN_PLACE = "run:7:events", "{run:7:events}"


LONG_AGO = "2026-01-12T12:35:00.000Z"


@dataclass(frozen=True)
class Plant:
    """A fault, planted.

    Attributes:
        rule: Code of the rule that it breaks.
        row: Kind of the key, ``""`` for a key of no contract.
        key: The key that is found.
        requests: What plants it, into an empty Redis; made when it is planted.
        also: Findings that cannot be avoided beside it: rule and key.
        clients: Names of connections that there are.
        form: Which of several faults that the same rule finds.
    """

    rule: str
    row: str
    key: bytes | str
    requests: Callable[[], list[Words]]
    also: tuple[tuple[str, str], ...] = ()
    clients: tuple[str, ...] = ()
    form: str = ""

    @property
    def name(self) -> str:
        return f"{self.rule}-{self.row or 'foreign'}{self.form and f' {self.form}'}"


def at(seconds: float = 0.0) -> str:
    """A timestamp of the contracts, so many seconds from now."""
    moment = datetime.fromtimestamp(time.time() + seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def dumps(*parts: dict[str, object], **fields: object) -> bytes:
    whole: dict[str, object] = {}
    for part in (*parts, fields):
        whole |= part
    return orjson.dumps({name: value for name, value in whole.items() if value != "-"})


def record(**fields: object) -> bytes:
    """A record in the contract's form; ``"-"`` leaves a field out."""
    return dumps({"timestamp": at(), "level": "info", "message": "连接成功"}, fields)


def command(**fields: object) -> bytes:
    whole: dict[str, object] = {
        "id": "cmd-1700000000000-abc123",
        "timestamp": at(),
        "source": "BLS Project Console",
        "command": "reload",
        "args": {"force": True},
    }
    return dumps(whole, fields)


def event(**fields: object) -> list[object]:
    whole = {
        "timestamp": at(), "sequence": "1", "source_agent_id": "",
        "event_category": "llm", "event_action": "stream", "data": '{"text": "你好"}',
    }  # fmt: skip
    return [
        word for pair in (whole | fields).items() if pair[1] != "-" for word in pair
    ]


# Of each kind what it says beside status and timestamp: its id first.
HEARTBEATS: dict[str, dict[str, object]] = {
    row: {**dict(list(sound.items())[2:]), KINDS[row].id_field: "n1"}
    for row, sound in sound_heartbeats().items()
}
# Of each kind a field that holds what it cannot.
ODD_FIELDS: dict[str, dict[str, object]] = {
    "data_worker_heartbeat": {"stats": "none"},
    "backtest_worker_heartbeat": {"task_uuids": "a, b"},
    "execution_node_heartbeat": {"port": "http"},
    "scheduler_heartbeat": {"pending_tasks": -1},
    "task_timer_heartbeat": {"jobs_count": [1]},
}


def heartbeat(row: str, **fields: object) -> bytes:
    return dumps({"status": "running", "timestamp": at()}, HEARTBEATS[row], fields)


def key_of(row: str) -> str:
    """A key of a kind."""
    values = {
        "project": PROJECT, "place": f"{{{CONTROL}}}", "instance": "a1", "run_id": "7",
        "category": "tool", "spider": None,
    }  # fmt: skip
    if row == "run_books":
        values["place"] = RUN_PLACE
    elif row.startswith("crawl"):
        values["place"] = f"{{crawlo:{PROJECT}:queue:requests}}"
    template = KEYS[row]
    return template.locate(**{name: values.get(name, "n1") for name in template.fields})


FILLERS: dict[RedisType, Callable[[str], list[Words]]] = {
    RedisType.STRING: lambda key: [("SET", key, "x")],
    RedisType.LIST: lambda key: [("RPUSH", key, "x")],
    RedisType.SET: lambda key: [("SADD", key, "2026-01-12")],
    RedisType.ZSET: lambda key: [("ZADD", key, 1, "x")],
    RedisType.HASH: lambda key: [("HSET", key, "x", "y")],
    RedisType.STREAM: lambda key: [("XADD", key, "*", *event())],
}

ASSET = {
    "id": "n1", "version": "1.2.0", "category": "tool", "name": "Google 搜索",
    "description": "在 Google 上搜索内容", "config_schema": "[]",
    "agent_specs": '{"function_name":"google_search"}', "runtime": "{}",
    "github_path": "tools/search/google.yaml", "github_sha": "abc123def456...",
    "created_at": "1704067200", "updated_at": "1704153600",
}  # fmt: skip
META, INDEX, SYNC = key_of("asset_metadata"), key_of("asset_index"), "asset:sync:state"


def summary(**fields: object) -> bytes:
    names = ("id", "name", "category", "version", "description")
    return dumps({name: ASSET[name] for name in names}, fields)


def asset(category: str = "tool", listed: str = "", **fields: str) -> list[Words]:
    """An asset with everything that belongs to it, some fields otherwise."""
    whole = {name: value for name, value in (ASSET | fields).items() if value != "-"}
    return [
        ("HSET", META, *(word for pair in whole.items() for word in pair)),
        ("SADD", f"asset:category:{category}", "n1"),
        ("HSET", INDEX, "n1", listed or summary()),
    ]


def good(row: str) -> list[Words]:
    """A key of a kind as the contracts want it."""
    key, template = key_of(row), KEYS[row]
    special: dict[str, Callable[[], list[Words]]] = {
        "project_status": lambda: [("SET", key, "在线", "EX", 60)],
        "project_console": lambda: [("RPUSH", key, record())],
        "control": lambda: [("RPUSH", key, command())],
        "inflight": lambda: [
            ("RPUSH", key, command()),
            ("HSET", f"{PLACE}:inflight", key, 1),
            ("SET", f"bls_agent:{key}:owner", "t", "PX", 60_000),
        ],
        "owner": lambda: [("SET", key, "t", "PX", 60_000)],
        "run_books": run,
        "func_cache": lambda: [
            ("SET", key, dumps(result=1, timestamp=at(), func_name="n1"), "EX", 3600)
        ],
        "asset_metadata": asset,
        "asset_category": asset,
        "asset_index": asset,
        "asset_sync_state": lambda: [
            ("HSET", SYNC, "last_sync_time", "1704153600", "synced_count", "42",
             "last_commit_sha", "abc123def456...", "sync_status", "idle")
        ],
        "crawl_requests": lambda: crawl("requests"),
        "crawl_requests_data": lambda: crawl("requests"),
        "crawl_processing": lambda: crawl("processing"),
        "crawl_processing_data": lambda: crawl("processing"),
        "crawl_failed": lambda: [
            ("RPUSH", key, dumps(request={"url": "http://a"}, reason="x", attempts=4)),
            ("RPUSH", key, dumps(request=None, raw_base64="gAQ=", reason="x")),
        ],
        "crawl_failed_retries": lambda: [("SET", key, "2")],
        "crawl_leases": lambda: [*crawl("processing"), ("HSET", key, "r1", "token 0")],
        "crawl_delayed": lambda: [*crawl("processing"), ("HSET", key, "r1", "1")],
        "crawl_counters": lambda: [("HSET", key, "serial", "17", "pushed", "0")],
        "instances": lambda: [
            ("HSET", key, "a1", "ab.60000 1700000000000 在线"), ("EXPIRE", key, 60)
        ],
    }  # fmt: skip
    if row in special:
        return special[row]()
    if row in HEARTBEATS:
        return [("SET", key, heartbeat(row), "EX", 30)]
    requests = FILLERS[template.type or RedisType.HASH](key)
    return [*requests, ("EXPIRE", key, template.ttl)] if template.ttl else requests


def run(*pairs: object, life: int = 86_400) -> list[Words]:
    """A run whose events our store counts, some of the books otherwise."""
    books = key_of("run_books")
    return [
        ("XADD", RUN, "*", *event()),
        ("EXPIRE", RUN, life),
        ("HSET", books, *(pairs or ("sequence", "1", "id", "1700000000000-0"))),
        ("EXPIRE", books, life),
    ]


def crawl(queue: str) -> list[Words]:
    """A request that waits, or one in the hands of a worker."""
    key = f"crawlo:{PROJECT}:queue:{queue}"
    score = 1 if queue == "requests" else f"{time.time() + 60:.3f}"
    return [
        ("ZADD", key, score, "r1"),
        ("HSET", f"{key}:data", "r1", '{"url": "http://a"}'),
    ]


def one(*words: object) -> list[Words]:
    """One request alone."""
    return [words]


def unchanged_but(
    make: Callable[[str], list[Words]], what: str, last: Words
) -> list[Words]:
    """What is as it should be, and then one request more."""
    return [*make(what), last]


def both(*makers: Callable[[], list[Words]]) -> list[Words]:
    return [request for make in makers for request in make()]


def generic_plants() -> Iterator[Plant]:
    """Derived from the table of keys, as the rules are."""
    for row, template in KEYS.items():
        if template.type is None:
            continue
        key = key_of(row)
        other = RedisType.SET if template.type is RedisType.HASH else RedisType.HASH
        yield Plant("wrong-type", row, key, partial(FILLERS[other], key))
        also = (("dead-letters", key),) if row == "dead_letters" else ()
        if row in TTL_OPEN:
            continue
        if template.ttl is None:
            yield Plant("ttl-unwanted", row, key, expiring(row, 500), also)
            continue
        yield Plant("ttl-long", row, key, expiring(row, FAR * template.ttl + 100))
        if row not in TTL_ADVISED:
            yield Plant(
                "ttl-missing", row, key,
                partial(unchanged_but, good, row, ("PERSIST", key)),
            )  # fmt: skip


def expiring(row: str, seconds: int) -> Callable[[], list[Words]]:
    return lambda: [*good(row), ("EXPIRE", key_of(row), seconds)]


def log(rule: str, *make: Callable[[], bytes]) -> Plant:
    return Plant(
        rule, "project_console", CONSOLE,
        lambda: [("RPUSH", CONSOLE, record(), *(item() for item in make))],
    )  # fmt: skip


def sent(rule: str, *make: Callable[[], bytes], also: str = "") -> Plant:
    beside = ((also, CONTROL),) if also else ()
    return Plant(
        rule, "control", CONTROL,
        lambda: [("RPUSH", CONTROL, command(), *(item() for item in make))], beside,
    )  # fmt: skip


def numbered(*agents: str) -> list[bytes]:
    return [record(metadata={"agent": agent}) for agent in agents]


def many(key: str, item: Callable[[], bytes], count: int) -> list[Words]:
    """Fill a list in few requests."""
    part = [item()] * 10_000
    return [
        ("RPUSH", key, *part[: min(10_000, count - begin)])
        for begin in range(0, count, 10_000)
    ]


def project_plants() -> Iterator[Plant]:
    def status(rule: str, *words: object) -> Plant:
        return Plant(rule, "project_status", STATUS, lambda: [("SET", STATUS, *words)])

    yield status("status-unknown", "online", "EX", 60)
    yield status("status-blanks", "在线\n", "EX", 60)
    yield status("status-untimed", "在线")
    yield status("status-lapsing", "在线", "PX", 1_500)
    yield log("log-not-utf8", lambda: "连接成功".encode("gbk"))
    yield log("log-not-json", lambda: b"2026-01-12 12:00:00 INFO started")
    yield log("log-timestamp", lambda: record(timestamp=1700000000))
    yield log("log-zone", lambda: record(timestamp="2026-01-12T12:34:56.789"))
    yield log("log-ahead", lambda: record(timestamp=at(8 * 3600)))
    yield log("log-level", lambda: record(level="WARNING"))
    yield log("log-message", lambda: record(message="-"))
    yield log("log-metadata", lambda: record(metadata='{"module": "redis"}'))
    yield log("log-too-long", lambda: record(message="x" * 70_000))
    yield Plant(
        "log-uncapped", "project_console", CONSOLE,
        lambda: many(CONSOLE, record, 60_000),
    )  # fmt: skip
    yield Plant(
        "two-agents", "project_console", CONSOLE,
        lambda: [("RPUSH", CONSOLE, *numbered("a#1", "b#1", "a#2", "b#2"))],
        clients=("bls-agent:a:data", "bls-agent:b:data"),
    )  # fmt: skip
    yield sent("command-not-utf8", lambda: '{"command": "重载"}'.encode("gbk"))
    yield sent("command-not-json", lambda: b"reload")
    yield sent("command-without-name", lambda: command(id="2", command=" "))
    yield sent("command-args", lambda: command(id="2", args=["force"]))
    yield sent("command-id", lambda: command(id="-"))
    yield sent("command-timestamp", lambda: command(id="2", timestamp=1700000000))
    yield sent("command-source", lambda: command(id="2", source="-"))
    yield sent("command-repeated", command)
    yield sent("command-too-long", lambda: command(id="2", args={"x": "y" * 70_000}))
    yield Plant(
        "command-backlog", "control", CONTROL, lambda: [
            ("RPUSH", CONTROL, *(command(id=f"cmd-{n}") for n in range(2_000)))
        ],
    )  # fmt: skip
    yield Plant(
        "commands-untaken", "control", CONTROL, lambda: [
            ("SET", STATUS, "在线", "EX", 60),
            ("RPUSH", CONTROL, command(timestamp=LONG_AGO)),
        ],
    )  # fmt: skip
    yield Plant(
        "commands-unclaimed", "control", CONTROL, lambda: [
            ("RPUSH", CONSOLE, record()),
            ("RPUSH", CONTROL, command(timestamp=LONG_AGO)),
        ],
    )  # fmt: skip
    yield Plant(
        "commands-to-nobody", "control", CONTROL,
        lambda: [("RPUSH", CONTROL, command(timestamp=LONG_AGO))],
    )  # fmt: skip
    yield Plant(
        "twin-key", "", CONTROL.encode("gbk"),
        lambda: [("RPUSH", CONTROL.encode("gbk"), command())],
    )  # fmt: skip
    for row, suffix in (
        ("project_status", "项目状态"), ("project_console", "项目控制台"), ("control", "控制"),
    ):  # fmt: skip
        broken, twin = f"订单系统 _{suffix}", f"订单Ａ_{suffix}"
        yield Plant("name-broken", row, broken, renamed(row, broken))
        yield Plant(
            "twin-name", row, twin,
            partial(both, renamed(row, twin), renamed(row, f"订单A_{suffix}")),
        )  # fmt: skip


def renamed(row: str, key: str) -> Callable[[], list[Words]]:
    return lambda: [(request[0], key, *request[2:]) for request in good(row)]


def own_plants() -> Iterator[Plant]:
    inflight = f"{PLACE}:inflight:a1"
    owner = f"bls_agent:{inflight}:owner"
    listed: Words = ("HSET", f"{PLACE}:inflight", inflight, 1)
    owned: Words = ("SET", owner, "t", "PX", 60_000)
    yield Plant(
        "inflight-orphan", "inflight", inflight,
        lambda: [("RPUSH", inflight, command()), listed],
    )  # fmt: skip
    yield Plant(
        "inflight-unlisted", "inflight", inflight,
        lambda: [("RPUSH", inflight, command()), owned],
    )  # fmt: skip
    yield Plant(
        "dead-letters", "dead_letters", f"{PLACE}:dead",
        lambda: [("RPUSH", f"{PLACE}:dead", command())],
    )  # fmt: skip
    yield Plant("lease-endless", "owner", owner, lambda: [("SET", owner, "t")])
    roster = f"bls_agent:{{{STATUS}}}:instances"
    yield Plant(
        "roster-endless", "instances", roster,
        lambda: [("HSET", roster, "a1", "ab.60000 1700000000000 在线")],
    )  # fmt: skip


MANY_EVENTS = """
for i = 1, 20100 do redis.call('XADD', KEYS[1], '*', 'sequence', i, unpack(ARGV)) end
"""


HEAVY_EVENTS = """
for i = 1, 800 do redis.call('XADD', KEYS[1], '*', 'sequence', i, 'data',
  '{"x":"' .. string.rep('x', 90000) .. '"}', unpack(ARGV)) end
"""
CLOSE: dict[str, object] = {"event_category": "system", "event_action": "close"}


def run_plants() -> Iterator[Plant]:
    def planted(
        rule: str, *events: Callable[[], list[object]], number: str = "*"
    ) -> Plant:
        return Plant(
            rule, "run_events", RUN,
            lambda: [("XADD", RUN, number, *make()) for make in events],
        )  # fmt: skip

    yield Plant(
        "run-id", "run_events", "run:甲:events",
        lambda: [("XADD", "run:甲:events", "*", *event())],
    )  # fmt: skip
    yield planted("run-fields", lambda: event(data="-"))
    yield planted("run-timestamp", lambda: event(timestamp="1700000000"))
    yield planted("run-sequence", lambda: event(sequence="one"))
    yield planted("run-repeats", event, event)
    yield planted("run-holes", event, lambda: event(sequence="3"))
    yield planted("run-data", lambda: event(data="{'task': 1}"))
    yield planted("run-clock", event, number=f"{time.time() * 1000 + 8 * 3.6e6:.0f}-0")
    yield Plant("run-unclosed", "run_events", RUN, ended_run)
    yield Plant("run-after-close", "run_events", RUN, closed_run)
    yield planted("run-kept", event, number="1700000000000-0")
    yield Plant("run-untimed", "run_events", RUN, lambda: [*run(), ("PERSIST", RUN)])
    yield Plant(
        "run-too-long", "run_events", RUN, lambda: [
            ("EVAL", MANY_EVENTS, 1, RUN, *event(sequence="-"))
        ],
    )  # fmt: skip
    yield planted("run-large", lambda: event(data=dumps(text="x" * 300_000)))
    yield Plant(
        "run-heavy", "run_events", RUN, lambda: [
            ("EVAL", HEAVY_EVENTS, 1, RUN, *event(sequence="-", data="-"))
        ],
    )  # fmt: skip
    yield from book_plants()


def ended_run() -> list[Words]:
    """A run that ended two hours ago, and nobody closed it."""
    ended = event(event_category="lifecycle", event_action="completed")
    number = f"{time.time() * 1000 - 2 * 3.6e6:.0f}-0"
    return [("XADD", RUN, number, *ended), ("EXPIRE", RUN, 80_000)]


def closed_run() -> list[Words]:
    """A run that went on behind its end."""
    return [
        ("XADD", RUN, "*", *event(**CLOSE)),
        ("XADD", RUN, "*", *event(sequence="2")),
        ("EXPIRE", RUN, 80_000),
    ]


def book_plants() -> Iterator[Plant]:
    books = key_of("run_books")
    yield Plant("run-lost", "run_books", books, lambda: run("owner", "t"))
    yield Plant("run-gone", "run_books", books, lambda: [*run(), ("UNLINK", RUN)])
    yield Plant("run-books", "run_books", books, lambda: run("id", "last"))


def worker_plants() -> Iterator[Plant]:
    for row, fields in HEARTBEATS.items():
        key, number = key_of(row), next(iter(fields))

        def beat(
            rule: str,
            row: str = row,
            key: str = key,
            value: object = None,
            **changed: object,
        ) -> Plant:
            return Plant(
                rule, row, key,
                lambda: [("SET", key, value or heartbeat(row, **changed), "EX", 30)],
            )  # fmt: skip

        yield beat("heartbeat-not-json", value="running")
        yield beat("heartbeat-status", status="RUNNING")
        yield beat("heartbeat-timestamp", timestamp="yesterday")
        yield beat("heartbeat-zone", timestamp="2026-01-12T12:34:56")
        yield beat("heartbeat-clock", timestamp=at(-3_600))
        yield beat("heartbeat-fields", **{[*fields][-1]: "-"})
        yield Plant("heartbeat-values", row, key, partial(odd_beat, row, key))
        yield beat("heartbeat-id", **{number: "other"})
        yield Plant("heartbeat-stale", row, key, partial(stale_beat, row, key))
    yield from task_plants()
    lease = "bls_agent:{heartbeat:node:n1}:owner"
    yield Plant(
        "heartbeat-removed", "owner", lease,
        lambda: [("SET", lease, "token 7 digest", "EX", 30)],
    )  # fmt: skip
    generic = key_of("generic_heartbeat")
    hour_ago = orjson.dumps({"status": "running", "timestamp": at(-3_600)})
    yield Plant(
        "heartbeat-clock", "generic_heartbeat", generic,
        lambda: [("SET", generic, hour_ago, "EX", 30)],
    )  # fmt: skip
    yield Plant(
        "heartbeat-stale", "generic_heartbeat", generic,
        lambda: [("SET", generic, '{"status":"running"}', "EX", 10)],
    )  # fmt: skip
    for row in (
        "generic_heartbeat",
        "component_heartbeat",
        "process_heartbeat",
        "task_status",
        "backtest_task_progress",
    ):
        yield Plant(
            "worker-not-text", row, key_of(row),
            partial(one, "SET", key_of(row), b"\x80\x04\x95.", "EX", KEYS[row].ttl or 30),
        )  # fmt: skip
    dates = "tick_update_000001.SZ"
    yield Plant(
        "sync-dates", "sync_progress", dates,
        lambda: [("SADD", dates, "2026-01-12", "20260113"), ("EXPIRE", dates, 1000)],
    )  # fmt: skip
    cache = "ginkgo_func_cache_f_k"
    yield Plant(
        "cache-not-json", "func_cache", cache,
        lambda: [("SET", cache, b"\x80\x04N.", "EX", 3600)],
    )  # fmt: skip
    yield Plant(
        "cache-fields", "func_cache", cache, lambda: [("SET", cache, "42", "EX", 3600)]
    )
    yield Plant(
        "cache-function", "func_cache", cache,
        lambda: [("SET", cache, cached(func_name="g"), "EX", 3600)],
    )  # fmt: skip
    yield Plant(
        "cache-timestamp", "func_cache", cache,
        lambda: [("SET", cache, cached(timestamp="2026-01-12 12:00"), "EX", 3600)],
    )  # fmt: skip


def odd_beat(row: str, key: str) -> list[Words]:
    """A heartbeat one field of which holds what it cannot."""
    return [("SET", key, heartbeat(row, **ODD_FIELDS[row]), "EX", 30)]


def stale_beat(row: str, key: str) -> list[Words]:
    """A heartbeat that was refreshed twenty seconds ago."""
    return [("SET", key, heartbeat(row, timestamp=at(-20)), "EX", 10)]


def cached(**fields: object) -> bytes:
    """A result in the contract's form."""
    return dumps({"result": 1, "timestamp": at(), "func_name": "f"}, fields)


def task_plants() -> Iterator[Plant]:
    for row in ("task_status", "backtest_task_progress"):

        def task(rule: str, value: object = None, **said: object) -> Plant:
            whole = {"task_id": "n1", "status": "running", "timestamp": at(), **said}
            words = ("SET", key_of(row), value or dumps(whole), "EX", KEYS[row].ttl)  # noqa: B023 - called at once
            return Plant(rule, row, key_of(row), partial(one, *words))  # noqa: B023 - as above

        yield task("task-unreadable", "[1, 2]")
        yield task("task-id", task_id="n2")
        yield task("task-progress", progress="120")
        yield task("task-timestamp", timestamp="2026-01-12T12:34:56")


def asset_plants() -> Iterator[Plant]:
    def metadata(rule: str, **changed: str) -> Plant:
        form = str(changed)
        return Plant(rule, "asset_metadata", META, lambda: asset(**changed), form=form)

    def listed(rule: str, payload: bytes) -> Plant:
        requests = partial(asset, listed=payload)  # type: ignore[arg-type]
        return Plant(rule, "asset_index", INDEX, requests, form=payload.decode())

    yield metadata("asset-fields", version="-")
    yield metadata("asset-id", id="n2")
    yield Plant(
        "asset-category", "asset_metadata", META, lambda: [asset(category="widget")[0],
        ("HSET", INDEX, "n1", summary(category="widget")), ("HSET", META, "category", "widget")],
    )  # fmt: skip
    yield metadata("asset-version", version="v1", listed=summary(version="v1"))  # type: ignore[arg-type]
    yield metadata("asset-json", runtime="{'language': 'python'}")
    for field, payload in (
        ("config_schema", "{}"),
        ("agent_specs", "[]"),
        ("agent_specs", "{broken"),
    ):
        yield metadata("asset-json", **{field: payload})
    for payload in ("-", "", "null"):
        yield metadata("asset-fields", runtime=payload)
    yield metadata("asset-timestamp", created_at="yesterday")
    yield Plant("asset-uncategorised", "asset_metadata", META, lambda: asset()[::2])
    yield Plant("asset-unindexed", "asset_metadata", META, lambda: asset()[:2])
    yield Plant(
        "category-unknown", "asset_category", "asset:category:widget",
        lambda: [("SADD", "asset:category:widget", "n1"), *asset()],
        (("category-members", "asset:category:widget"),),
    )  # fmt: skip
    yield Plant(
        "category-members", "asset_category", "asset:category:tool",
        lambda: [*asset(), ("SADD", "asset:category:tool", "gone")],
    )  # fmt: skip
    yield Plant(
        "index-gone", "asset_index", INDEX,
        lambda: [*asset(), ("HSET", INDEX, "n2", summary(id="n2"))],
    )  # fmt: skip
    yield listed("index-json", b"Google")
    yield listed("index-json", summary(description=5))
    yield listed("index-differs", summary(version="1.0.0"))
    yield listed("index-description", summary(description="长" * 101))

    def sync(rule: str, *pairs: str) -> Plant:
        return Plant(
            rule, "asset_sync_state", SYNC,
            lambda: [*good("asset_sync_state"), ("HSET", SYNC, *pairs)],
        )  # fmt: skip

    yield sync("sync-status", "sync_status", "running")
    yield sync("sync-numbers", "synced_count", "many")
    yield sync("sync-stuck", "sync_status", "syncing")
    yield Plant(
        "sync-failed", "asset_sync_state", SYNC,
        lambda: [
            ("HSET", SYNC, "sync_status", "failed"),
            ("SET", "bls_agent:{asset:sync:state}:report", dumps(reason="1 file could not be used")),
        ],
    )  # fmt: skip
    yield Plant(
        "changes-uncapped", "asset_sync_changed", "asset:sync:changed",
        lambda: many("asset:sync:changed", lambda: b"n1", 1_001),
    )  # fmt: skip


def crawl_plants() -> Iterator[Plant]:
    yield Plant(
        "crawl-key", "", "crawlo:n1:queue", lambda: [("SET", "crawlo:n1:queue", "x")]
    )
    for queue in ("requests", "processing"):
        key = f"crawlo:{PROJECT}:queue:{queue}"
        yield Plant(
            "crawl-no-body", f"crawl_{queue}", key,
            partial(unchanged_but, crawl, queue, ("ZADD", key, 2**40, "r2")),
        )  # fmt: skip
        yield Plant(
            "crawl-no-request", f"crawl_{queue}_data", f"{key}:data",
            partial(unchanged_but, crawl, queue, ("HSET", f"{key}:data", "r2", "{}")),
        )  # fmt: skip
        yield Plant(
            "crawl-pickled", f"crawl_{queue}_data", f"{key}:data",
            partial(unchanged_but, crawl, queue, ("HSET", f"{key}:data", "r1", b"\x80\x04}.")),
        )  # fmt: skip
    processing = key_of("crawl_processing")
    yield Plant(
        "crawl-overdue", "crawl_processing", processing,
        partial(unchanged_but, crawl, "processing", ("ZADD", processing, f"{time.time() - 400:.3f}", "r1")),
    )  # fmt: skip
    for row in ("crawl_leases", "crawl_delayed"):
        yield Plant(
            "crawl-not-taken", row, key_of(row),
            partial(unchanged_but, good, row, ("HSET", key_of(row), "r2", "1")),
        )  # fmt: skip
    others: list[tuple[str, str, Words]] = [
        ("crawl-counters", "crawl_counters", ("HSET", "pushed", "1.5")),
        ("crawl-wake", "crawl_wake", ("RPUSH", "1", "1")),
        ("crawl-failed-full", "crawl_failed", ("RPUSH", *[dumps(request={}, reason="")] * 10_000)),
        ("crawl-failed-odd", "crawl_failed", ("RPUSH", b"\x80\x04}.")),
    ]  # fmt: skip
    for rule, row, (name, *rest) in others:
        key = key_of(row)
        yield Plant(rule, row, key, partial(one, name, key, *rest))
    retries = key_of("crawl_failed_retries")
    yield Plant(
        "crawl-retries",
        "crawl_failed_retries",
        retries,
        lambda: [("SET", retries, "9x")],
    )
    for row in ("crawl_filter_fingerprint", "crawl_item_fingerprint"):
        yield Plant(
            "crawl-salted", row, key_of(row),
            partial(one, "SADD", key_of(row), "-1234567890123456789"),
        )  # fmt: skip


PLANTS = [
    *generic_plants(),
    *project_plants(),
    *own_plants(),
    *run_plants(),
    *worker_plants(),
    *asset_plants(),
    *crawl_plants(),
]
