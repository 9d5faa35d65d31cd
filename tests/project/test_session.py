"""The life of a session, seen through its one state."""

from __future__ import annotations

import asyncio

from bls_agent import ProjectAgent
from bls_agent.project.session import AgentSession, SessionState
from tests.harness import eventually


def state_of(session: AgentSession) -> SessionState:
    """The state now; a type checker remembers what an attribute was."""
    return session.state


async def test_a_life_in_order(redis_url: str, project: str) -> None:
    """It opens, runs, stops and is closed; a stop that comes late changes nothing."""
    agent = ProjectAgent(project, redis=redis_url)
    async with agent:
        session = agent._session
        assert session is not None
        assert state_of(session) is SessionState.RUNNING
        session.stop(agent.status)
        assert state_of(session) is SessionState.STOPPING
        assert not session.is_open
    assert state_of(session) is SessionState.CLOSED
    session.stop(agent.status)
    session.detach()
    assert state_of(session) is SessionState.CLOSED


async def test_a_session_that_is_cancelled_before_it_began(
    redis_url: str, project: str
) -> None:
    """It is closed at once, and the agent can be opened again."""
    agent = ProjectAgent(project, redis=redis_url)
    opening = asyncio.create_task(agent.__aenter__())
    await asyncio.sleep(0)
    session = agent._session
    assert session is not None
    assert state_of(session) is SessionState.OPENING
    assert session._task is not None
    session._task.cancel()
    await eventually(lambda: state_of(session) is SessionState.CLOSED)
    await opening
    async with agent:
        await agent.ready(10)
