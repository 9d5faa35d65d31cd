"""Commands from people: limited in rate, and recorded before they are sent."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from bls_agent.project.messages import Command, Outcome
from bls_agent.terminal import visible
from bls_agent.web.state import WebState, requester, web_state

__all__ = ["call_command", "count_command", "send_command"]

logger = logging.getLogger(__name__)


async def send_command(
    request: Request,
    project: str,
    command: str,
    args: Mapping[str, Any] | None = None,
    *,
    id: str | None = None,  # noqa: A002 - the contract's name
    broadcast: bool = False,
) -> Command:
    """Send a command in the name of who asks, after a record of that.

    Raises:
        HTTPException: 429, the user sends too many.
        ConfigurationError: A name or an argument cannot be sent.
        RedisUnavailableError, WrongTypeError: As :meth:`bls_agent.Console.send`; when
            the record is refused, nothing was sent.
    """
    state = web_state(request)
    count_command(state, request)
    sent_by: str = request.state.sent_by
    sent = await state.console.send(
        project, command, args, id=id, broadcast=broadcast, sent_by=sent_by
    )
    # The id is the sender's own text, too: a line end in it would begin a line of its own.
    logger.info("%s sent %r (%s) to %r", sent_by, command, visible(sent.id), project)
    return sent


async def call_command(
    request: Request,
    project: str,
    command: str,
    args: Mapping[str, Any] | None = None,
    *,
    timeout: float = 3.0,
) -> Outcome:
    """Send a command as :func:`send_command` does, and wait for its outcome.

    Raises:
        HTTPException, ConfigurationError, RedisUnavailableError, WrongTypeError: As
            :func:`send_command`.
        NoOutcomeError: There is none within ``timeout`` seconds.
    """
    state = web_state(request)
    count_command(state, request)
    sent_by: str = request.state.sent_by
    return await state.console.call(
        project, command, args, timeout=timeout, sent_by=sent_by
    )


def count_command(state: WebState, request: Request) -> None:
    """Count a command of a user.

    Raises:
        HTTPException: 429, there were too many.
    """
    wait = state.commands.take(requester(request), state.now())
    if wait:
        state.counts["commands_refused"] += 1
        headers = {"retry-after": str(int(wait) + 1)}
        raise HTTPException(429, "too many commands", headers)
