"""``bls-agent projects``: every project that has a status, a log or waiting commands."""

from __future__ import annotations

import os

from bls_agent.ops.cli.command import command, new_app
from bls_agent.ops.cli.exits import Exit
from bls_agent.ops.cli.invocation import Invocation
from bls_agent.ops.cli.screen import Column
from bls_agent.ops.cli.views import status_name
from bls_agent.ops.cli.words import status_cell

__all__ = ["projects"]

app = new_app()


@command(app, "projects")
async def projects(invocation: Invocation) -> Exit:
    """List the projects with their statuses."""
    with invocation.waiting("waiting_redis"):
        async with invocation.console() as console:
            found = await console.projects()
    if invocation.json:
        for name, status in found.items():
            told = {"projectName": name, "status": status}
            invocation.out.json(told | {"statusName": status_name(status)})
        return Exit.DONE
    texts, people = invocation.texts, invocation.out.terminal
    invocation.out.table(
        [Column(texts["project"], 12), Column(texts["status"])],
        [
            (name, status_cell(status, texts, meaning_too=people))
            for name, status in found.items()
        ],
    )
    if not found:
        from bls_agent.connection.endpoint import Endpoint
        from bls_agent.connection.keyed_wires import default_endpoint

        given = invocation.redis
        where = Endpoint.of(given) if given else default_endpoint(os.environ)
        invocation.hint("no_projects", address=where.address)
    return Exit.DONE
