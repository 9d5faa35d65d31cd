"""Writes changes of statuses as messages for chat services. No I/O.

The texts of a message come from Redis and may contain anything. They are therefore
written so that the chat service finds no mention of a person and no markup in them.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import urlencode

from bls_agent.core.codec import JSONObject, decode_object, encode
from bls_agent.core.errors import DecodeError
from bls_agent.ops.terminal import visible
from bls_agent.ops.texts import Texts

LONGEST_NAME: Final = 100  # characters
LONGEST_REASON: Final = 200  # characters
PAUSE: Final = 3.0  # seconds between two posts, because a bot may send 20 a minute
ANSWER: Final = 4_096  # bytes of a service's response that are read


class Post(NamedTuple):
    """The body of a post, and additions to the headers and to the query of the URL."""

    body: bytes
    headers: Mapping[str, str] = MappingProxyType({})
    query: str = ""


def write_feishu(lines: Sequence[str], secret: str, now: float) -> Post:
    """Write a rich text, because a plain text could mention people of the chat."""
    content = [[{"tag": "text", "text": line}] for line in lines[1:]]
    post = {"zh_cn": {"title": lines[0], "content": content}}
    message: JSONObject = {"msg_type": "post", "content": {"post": post}}
    if secret:
        moment = str(int(now))
        sign = _sign(f"{moment}\n{secret}", "")
        message |= {"timestamp": moment, "sign": sign}
    return Post(encode(message))


def write_dingtalk(lines: Sequence[str], secret: str, now: float) -> Post:
    message: JSONObject = {"msgtype": "text", "text": {"content": "\n".join(lines)}}
    if not secret:
        return Post(encode(message))
    moment = str(int(now * 1_000))
    sign = _sign(secret, f"{moment}\n{secret}")
    query = urlencode({"timestamp": moment, "sign": sign})
    return Post(encode(message), query=query)


def write_wecom(lines: Sequence[str], _: str, __: float) -> Post:
    text = "\n".join(lines).replace("<@", "< @")  # `<@` begins a mention
    return Post(encode({"msgtype": "text", "text": {"content": text}}))


def write_slack(lines: Sequence[str], _: str, __: float) -> Post:
    text = "\n".join(lines)
    for character, name in (("&", "amp"), ("<", "lt"), (">", "gt")):
        text = text.replace(character, f"&{name};")
    return Post(encode({"text": text, "mrkdwn": False}))


def _sign(key: str, text: str) -> str:
    digest = hmac.digest(key.encode(), text.encode(), "sha256")
    return base64.b64encode(digest).decode()


class Chat(NamedTuple):
    """How to post to a service; ``longest`` is in bytes, below the service's limit."""

    write: Callable[[Sequence[str], str, float], Post]
    longest: int


CHATS: Final[Mapping[str, Chat]] = {
    "feishu": Chat(write_feishu, 12_000),
    "dingtalk": Chat(write_dingtalk, 12_000),
    "wecom": Chat(write_wecom, 2_000),
    "slack": Chat(write_slack, 3_000),
}


def write_lines(
    head: str, changes: Iterable[JSONObject], longest: int, texts: Texts
) -> list[str]:
    """Return the head and one line for each change, as long as the lines fit.

    The first change is always included.
    """
    lines = [head]
    size = len(head.encode())
    for change in changes:
        line = _write_line(change, texts)
        size += 1 + len(line.encode())
        if size > longest and len(lines) > 1:
            break
        lines.append(line)
    return lines


def _write_line(change: JSONObject, texts: Texts) -> str:
    before, after = change["from"], texts[f"kind_{change['to']}"]
    known = texts[f"kind_{before}"] if before else texts["js_change_new"]
    reason = f": {_cut(change['reason'], LONGEST_REASON)}" if change["reason"] else ""
    moment = change["timestamp"][:19].replace("T", " ")
    name = _cut(visible(change["projectName"]), LONGEST_NAME)
    return f"{name}: {known} → {after}{reason} ({moment} UTC)"


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def refusal_in(answer: bytes) -> str:
    """Return the error in a response of status 200, or ``""``.

    Feishu, DingTalk and WeCom report errors in such responses.
    """
    try:
        fields = decode_object(answer)
    except DecodeError:
        return ""  # Slack returns a word instead of JSON
    code = fields.get("code") or fields.get("errcode")
    words = fields.get("msg") or fields.get("errmsg")
    return f"it answered {code}: {_cut(str(words), LONGEST_REASON)}" if code else ""
