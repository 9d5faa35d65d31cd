"""What people change: limited in rate, and recorded."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from bls_agent.crawl.namespace import Namespace
from bls_agent.crawl.queue import RequestQueue
from bls_agent.project.messages import CONSOLE_SOURCE, Command, Outcome
from bls_agent.terminal import visible
from bls_agent.web.state import WebState, requester, web_state

__all__ = [
    "call_command",
    "count_command",
    "crawl_queue",
    "forget_project",
    "requeue_failed",
    "send_command",
    "withdraw_command",
]

logger = logging.getLogger(__name__)


async def send_command(
    request: Request,
    project: str,
    command: str,
    args: Mapping[str, Any] | None = None,
    *,
    id: str | None = None,  # noqa: A002 - the contract's name
    create: bool = False,
    record: bool = True,
    source: str = "",
    timestamp: str = "",
) -> Command:
    """Send a command in the name of who asks, with a record of that.

    Args:
        request: Who asks; with a login, the command's ``source`` is the user.
        project: Whose command it is.
        command: Its name.
        args: Its arguments.
        id: Its id.
        create: Also to a project that has no key.
        record: Whether the record is written.
        source: Its ``source``, where there is no login.
        timestamp: Its ``timestamp``.

    Raises:
        HTTPException: 429, the user sends too many.
        ConfigurationError, RedisUnavailableError, UnknownProjectError, WrongTypeError:
            As :meth:`bls_agent.Console.send`.
    """
    state = web_state(request)
    count_command(state, request)
    sent_by: str = request.state.sent_by
    sent = await state.console.send(
        project,
        command,
        args,
        id=id,
        create=create,
        record=record,
        sent_by=sent_by if record else "",
        source=request.state.user or source or CONSOLE_SOURCE,
        timestamp=timestamp,
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
        project, command, args, timeout=timeout, record=True, sent_by=sent_by
    )


async def withdraw_command(
    request: Request, project: str, number: str
) -> Command | None:
    """Take a command out of a project's queue, as :meth:`bls_agent.Console.withdraw`.

    Raises:
        HTTPException: 429, the user sends too many.
    """
    state = web_state(request)
    count_command(state, request)
    withdrawn = await state.console.withdraw(project, number)
    if withdrawn is not None:
        sent_by: str = request.state.sent_by
        logger.info("%s withdrew %r from %r", sent_by, visible(number), project)
    return withdrawn


async def forget_project(
    request: Request, project: str, *, force: bool = False
) -> list[str]:
    """Delete a project's keys, as :meth:`bls_agent.Console.forget`.

    Raises:
        HTTPException: 429, the user sends too many.
    """
    state = web_state(request)
    count_command(state, request)
    deleted = await state.console.forget(project, force=force)
    await state.fleet.forget(project)
    logger.info(
        "%s deleted %d keys of %r", request.state.sent_by, len(deleted), project
    )
    return deleted


def crawl_queue(request: Request, shown: str) -> RequestQueue:
    """Give a crawl queue by its name as addresses have it: ``project:spider``.

    Raises:
        ConfigurationError: No queue can have this name.
    """
    name = Namespace.parse(shown)
    return RequestQueue(web_state(request).config.redis, name.project, name.spider)


async def requeue_failed(request: Request, shown: str) -> int:
    """Queue the failed requests of a crawl queue once more; say how many.

    Raises:
        HTTPException: 429, the user sends too many.
        ConfigurationError: No queue can have this name.
    """
    count_command(web_state(request), request)
    async with crawl_queue(request, shown) as queue:
        count = await queue.requeue_failed()
    sent_by: str = request.state.sent_by
    logger.info("%s queued %d failed requests of %r again", sent_by, count, shown)
    return count


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
