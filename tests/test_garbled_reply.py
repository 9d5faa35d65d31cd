"""A reply that is no RESP: of a connection that worked, and of one that never did."""

from __future__ import annotations

import re

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from redis.exceptions import InvalidResponse

from bls_agent import Console, RedisRefusedError, RedisUnavailableError
from bls_agent.connection.faults import translate


def test_what_never_was_redis_is_refused_for_good() -> None:
    """A garbled greeting is a wrong address; later on it is an accident of the link."""
    error = InvalidResponse("Protocol Error: b'HTTP/1.1'")
    assert translate(error, "x", connecting=True).kind == "not_redis"
    assert isinstance(translate(error, "x", connecting=True), RedisRefusedError)
    assert translate(error, "x").kind == "garbled"
    assert not isinstance(translate(error, "x"), RedisRefusedError)


SIGNS: dict[str, tuple[Exception, str, str]] = {
    "HTTP": (
        InvalidResponse("Protocol Error: b'HTTP/1.1'"),
        "redis://h:80/0",
        "an HTTP server",
    ),
    "no TLS, at once": (
        ConnectionError("[SSL: WRONG_VERSION_NUMBER] wrong version number"),
        "rediss://h:6379/0",
        "is it redis:// with one s",
    ),
    "no TLS, never": (TimeoutError(), "rediss://h:6379/0", "is it redis://?"),
}


@pytest.mark.parametrize(("error", "address", "advice"), SIGNS.values(), ids=SIGNS)
def test_what_listens_there_is_guessed(
    error: Exception, address: str, advice: str
) -> None:
    """Where a new connection fails the error says what to look at, once."""
    told = translate(error, address, connecting=True)
    assert str(told).count(advice) == 1
    assert str(translate(told, address, connecting=True)) == str(told)
    assert advice not in str(translate(error, address))


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP server seems to answer there"),
        (
            b"<!DOCTYPE HTML>\r\n",
            "an HTTP server seems to answer there: is it a Redis?",
        ),
        (b"220 smtp.example ESMTP\r\n", "is it a Redis that listens there?"),
        (b"", "is it a Redis that listens there?"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "is it rediss:// with two s?"),
    ],
    ids=["HTTP", "HTML", "SMTP", "nothing", "TLS"],
)
async def test_another_protocol_is_recognised(answer: bytes, advice: str) -> None:
    """By the first bytes of what answers: HTTP's, or an alert of TLS."""

    async def serve(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(answer)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        async with Console(f"redis://127.0.0.1:{port}/0") as console:
            with pytest.raises(RedisUnavailableError, match=re.escape(advice)):
                await console.projects()
        tasks.cancel_scope.cancel()
