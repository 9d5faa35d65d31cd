"""The messages to chat services, to the byte, and their way to a bot."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import anyio
import orjson
import pytest
from redis.asyncio import Redis

from bls_agent import ConfigurationError
from bls_agent.ops.texts import load_texts
from bls_agent.ops.web.chat import CHATS, refusal_in, write_lines
from bls_agent.ops.web.config import WebConfig, WebhookTarget
from bls_agent.ops.web.feeds import changes
from tests.harness import eventually
from tests.ops.web.serving import console_of
from tests.ops.web.test_changes import Receiver, change

NOW = 1_700_000_000.5
LINES = [
    "bls-agent · 生产",
    "订单系统: 在线 → 故障: <@all> & *x* (2023-11-14 22:13:20 UTC)",
]
# By: printf '…' | openssl dgst -sha256 -hmac '…' -binary | base64
FEISHU_SIGN = "SqAAKq+LeBpM90HLQbQZuXzQJU2DWQuN3nGpYvrdFMc="
DINGTALK_SIGN = "1zbeyZ6x2dT1%2BqGBpb1Qrlhisx9y3qHA61Lv7HQCSTU%3D"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of a real console are tenths here."""
    monkeypatch.setattr(changes, "TICK", 0.05)
    monkeypatch.setattr(changes, "EXPLAINED_IN", 0.1)
    monkeypatch.setattr(changes, "PAUSE", 0.05)


def posted(service: str, secret: str = "") -> tuple[Any, str]:
    post = CHATS[service].write(LINES, secret, NOW)
    return orjson.loads(post.body), post.query


def test_feishu() -> None:
    """A rich text; in a plain text ``<at …>`` would mention somebody."""
    content = {"post": {"zh_cn": {
        "title": LINES[0], "content": [[{"tag": "text", "text": LINES[1]}]],
    }}}  # fmt: skip
    assert posted("feishu") == ({"msg_type": "post", "content": content}, "")
    signed = {"timestamp": "1700000000", "sign": FEISHU_SIGN}
    message = {"msg_type": "post", "content": content, **signed}
    assert posted("feishu", "SECx") == (message, "")


def test_dingtalk() -> None:
    """A text; the signature belongs to the address."""
    message = {"msgtype": "text", "text": {"content": "\n".join(LINES)}}
    assert posted("dingtalk") == (message, "")
    query = f"timestamp=1700000000500&sign={DINGTALK_SIGN}"
    assert posted("dingtalk", "SECx") == (message, query)


def test_wecom() -> None:
    """A text without a mention; the service has no signature."""
    text = f"{LINES[0]}\n{LINES[1].replace('<@', '< @')}"
    assert posted("wecom", "SECx") == (
        {"msgtype": "text", "text": {"content": text}}, ""
    )  # fmt: skip


def test_slack() -> None:
    """The three characters of its markup are escaped, and stars are stars."""
    text = f"{LINES[0]}\n订单系统: 在线 → 故障: &lt;@all&gt; &amp; *x* (2023-11-14 22:13:20 UTC)"
    assert posted("slack", "SECx") == ({"text": text, "mrkdwn": False}, "")


@pytest.mark.parametrize(
    ("language", "first", "second"),
    [
        ("zh", "订单系统: 在线 → 故障: 数据库 (2023-11-14 22:13:20 UTC)",
         r"a\nb: 新项目 → 已失联 (2023-11-14 22:13:20 UTC)"),
        ("en", "订单系统: 在线 online → 故障 fault: 数据库 (2023-11-14 22:13:20 UTC)",
         r"a\nb: new → stale (2023-11-14 22:13:20 UTC)"),
    ],
)  # fmt: skip
def test_the_lines(language: str, first: str, second: str) -> None:
    """In the console's language: which project, from, to, why and when."""
    texts, moment = load_texts("web", language), "2023-11-14T22:13:20.500Z"
    told: list[dict[str, Any]] = [
        {"projectName": "订单系统", "from": "online", "to": "fault",
         "reason": "数据库", "timestamp": moment},
        {"projectName": "a\nb", "from": None, "to": "stale",
         "reason": "", "timestamp": moment},
    ]  # fmt: skip
    assert write_lines("head", told, 10_000, texts) == ["head", first, second]


@pytest.mark.parametrize("service", CHATS)
def test_a_message_is_bounded(service: str) -> None:
    """By bytes: what does not fit comes with the next one; the longest line fits."""
    texts = load_texts("web", "en")
    change = {"projectName": "\U0001f525" * 500, "from": "online", "to": "offline",
              "reason": "\U0001f525" * 9_000, "timestamp": "2023-11-14T22:13:20.500Z"}  # fmt: skip
    longest = CHATS[service].longest
    lines = write_lines("头" * 80, [change] * 100, longest, texts)
    assert 2 <= len(lines) < 20
    assert len("\n".join(lines).encode()) <= longest


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b'{"code":19021,"msg":"sign match fail","data":{}}', "it answered 19021: sign match fail"),
        (b'{"errcode":310000,"errmsg":"keywords"}', "it answered 310000: keywords"),
        (b'{"StatusCode":0,"code":0,"msg":"success"}', ""),
        (b'{"errcode":0,"errmsg":"ok"}', ""),
        (b"ok", ""),
        (b"", ""),
    ],
)  # fmt: skip
def test_a_refusal_may_have_status_200(answer: bytes, fault: str) -> None:
    """Three of the services refuse that way; Slack answers with a word."""
    assert refusal_in(answer) == fault


async def test_a_change_reaches_the_group(
    redis_url: str, redis: Redis, project: str
) -> None:
    """Signed, in the console's language, and again after a refusal of the service."""
    key = f"{project}_项目状态"
    await redis.set(key, "在线")
    busy, taken = {"errcode": 130101, "errmsg": "busy"}, {"errcode": 0}
    with Receiver(busy, taken) as receiver:
        target = WebhookTarget(f"dingtalk:{receiver.url}", "SECx")
        config = WebConfig(redis=redis_url, webhook=target, language="zh", title="生产")
        async with console_of(
            redis_url, webhook=target, language="zh", title="生产"
        ) as client:
            await eventually(lambda: _knows(client, project))
            await redis.set(key, "离线")
            await eventually(lambda: len(receiver.posts) >= 2, 10)
    first, second = receiver.posts[:2]
    assert first[2] == second[2]
    content = orjson.loads(second[2])["text"]["content"]
    assert content.startswith(f"bls-agent · 生产\n{project}: 在线 → 离线 (")
    assert second[0].startswith("/hook?k=1&timestamp=")
    assert "SECx" not in repr(config) + str(second)


async def _knows(client: Any, project: str) -> bool:
    answer = await client.get("/fragments/card", params={"projectName": project})
    return bool(answer.json()["cards"])


async def test_what_does_not_fit_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, nothing twice; what was dropped is told in the next message."""
    monkeypatch.setattr(changes, "MOST", 12)
    counts = Counter[str]()
    with Receiver() as receiver:
        target = WebhookTarget(f"wecom:{receiver.url}", "")
        about = {"redis": "redis://h:1/2"}
        hook = changes.Webhook(target, about, counts, load_texts("web", "en"))
        for number in range(14):
            hook.put(replace(change(number), reason="x" * 300))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hook.run)
            await eventually(lambda: counts["webhook_changes_posted"] == 12)
            tasks.cancel_scope.cancel()
    texts = [orjson.loads(body)["text"]["content"] for _, _, body in receiver.posts]
    assert texts[0].startswith("bls-agent · redis://h:1/2 · 2 older changes")
    assert texts[1].startswith("bls-agent · redis://h:1/2\n")
    assert [text.count("→") for text in texts] == [7, 5]


@pytest.mark.parametrize("url", ["teams:https://a.example/", "feishu:a.example/x"])
def test_an_unknown_service_is_named(url: str) -> None:
    with pytest.raises(ConfigurationError, match="feishu:, dingtalk:, wecom:, slack:"):
        WebhookTarget(url, "")
