"""Changes by users: limited in rate, and recorded."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request

from bls_agent.crawl.overview import Namespace
from bls_agent.crawl.queue import RequestQueue
from bls_agent.ops.terminal import visible
from bls_agent.ops.web.help import HELP
from bls_agent.ops.web.requests import CommandRequest
from bls_agent.ops.web.state import requester, web_state
from bls_agent.project.messages import CONSOLE_SOURCE, Command, Outcome

__all__ = [
    "ask_help",
    "crawl_queue",
    "forget_project",
    "requeue_failed",
    "send_command",
    "withdraw_command",
]

logger = logging.getLogger(__name__)


async def send_command(
    request: Request, told: CommandRequest, *, create: bool = False
) -> Command:
    """Send a command in the name of the user, with an audit record if it wants one.

    Without a login its ``source`` is the one given. ``create`` sends it also to a
    project that has no key. Raises as :meth:`bls_agent.Console.send`, and 429 for too
    many.
    """
    sent_by = _count_command(request)
    sent = await web_state(request).console.send(
        told.project,
        told.command,
        told.args,
        id=told.id,
        create=create,
        record=told.record,
        sent_by=sent_by if told.record else "",
        source=request.state.user or told.source or CONSOLE_SOURCE,
        timestamp=told.timestamp,
    )
    # The id is the sender's text: a line end in it would forge a line of the log.
    shown = visible(sent.id)
    logger.info("%s sent %r (%s) to %r", sent_by, told.command, shown, told.project)
    return sent


async def ask_help(request: Request, project: str, timeout: float) -> Outcome:
    """Send ``help`` to a project's agent, and wait for the outcome."""
    sent_by = _count_command(request)
    return await web_state(request).console.call(
        project, HELP, timeout=timeout, record=True, sent_by=sent_by
    )


async def withdraw_command(
    request: Request, project: str, number: str
) -> Command | None:
    """Take a command out of a queue, as :meth:`bls_agent.Console.withdraw`."""
    sent_by = _count_command(request)
    withdrawn = await web_state(request).console.withdraw(project, number)
    if withdrawn is not None:
        logger.info("%s withdrew %r from %r", sent_by, visible(number), project)
    return withdrawn


async def forget_project(
    request: Request, project: str, *, force: bool = False
) -> list[str]:
    """Delete a project's keys, as :meth:`bls_agent.Console.forget`."""
    state = web_state(request)
    sent_by = _count_command(request)
    deleted = await state.console.forget(project, force=force)
    await state.fleet.forget(project)
    logger.info("%s deleted %d keys of %r", sent_by, len(deleted), project)
    return deleted


def crawl_queue(request: Request, shown: str) -> RequestQueue:
    """Give a crawl queue by its name in addresses: ``project:spider``."""
    name = Namespace.parse(shown)
    return RequestQueue(web_state(request).config.redis, name.project, name.spider)


async def requeue_failed(request: Request, shown: str) -> int:
    """Queue the failed requests of a crawl queue once more; give their number."""
    sent_by = _count_command(request)
    async with crawl_queue(request, shown) as queue:
        count = await queue.requeue_failed()
    logger.info("%s queued %d failed requests of %r again", sent_by, count, shown)
    return count


def _count_command(request: Request) -> str:
    """Count a command of a user, or raise 429; give the user for the audit record."""
    state = web_state(request)
    wait = state.commands.take(requester(request), state.now())
    if wait:
        state.counts["commands_refused"] += 1
        headers = {"retry-after": str(int(wait) + 1)}
        raise HTTPException(429, "too many commands", headers)
    sent_by: str = request.state.sent_by
    return sent_by
