"""A reply that is no RESP: of a connection that worked, and of one that never did."""

from __future__ import annotations

from redis.asyncio import Redis
from redis.exceptions import InvalidResponse

from bls_agent import ProjectAgent, RedisRefusedError
from bls_agent.faults import translate
from bls_agent.testing.chaos import FaultProxy, Flip
from tests.harness import History, eventually


def test_what_never_was_redis_is_refused_for_good() -> None:
    """A garbled greeting is a wrong address; later on it is an accident of the link."""
    error = InvalidResponse("Protocol Error: b'HTTP/1.1'")
    assert translate(error, "x", connecting=True).kind == "not_redis"
    assert isinstance(translate(error, "x", connecting=True), RedisRefusedError)
    assert translate(error, "x").kind == "garbled"
    assert not isinstance(translate(error, "x"), RedisRefusedError)


async def test_a_garbled_reply_costs_one_connection(
    redis_url: str, redis: Redis, project: str
) -> None:
    """The next command runs soon, not when a wrong address would be tried again."""
    history = History()
    async with FaultProxy(redis_url, seed=1) as proxy:
        agent = ProjectAgent(project, redis=proxy.url, mode="blocking")
        history.attach(agent)
        async with agent:
            await agent.ready(5)
            for command in ("BLPOP", "RPUSH"):
                armed = proxy.arm(Flip(command=command, mask=0x80))
                agent.log.info("something to write")
                await history.push(redis, project)
                await eventually(lambda armed=armed: bool(armed.fired))  # type: ignore[misc]
                await history.push(redis, project)
                await eventually(
                    lambda: history.handled[-1:] == history.pushed[-1:], 15
                )
            assert await agent.flush(15)
    assert len(history.pushed) - len(history.handled) <= 1
