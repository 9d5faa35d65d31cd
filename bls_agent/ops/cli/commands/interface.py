"""``bls-agent asyncapi``, ``stubs``: the commands of a project for other programs."""

from __future__ import annotations

import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Final

from typer import Argument, Option

from bls_agent.connection.pool import find_endpoint
from bls_agent.core.codec import encode_lines
from bls_agent.core.settings import Settings
from bls_agent.ops.cli.app import command
from bls_agent.ops.cli.commands.run import load_agent, parse_target
from bls_agent.ops.cli.commands.send import fetch_help
from bls_agent.ops.cli.errors import Exit, Failure, normalise
from bls_agent.ops.cli.options import TimeoutOption, complete_project
from bls_agent.ops.cli.output import Invocation
from bls_agent.ops.interface.asyncapi import write_asyncapi
from bls_agent.ops.interface.project import ProjectInterface, read_interface
from bls_agent.ops.interface.stubs import write_stubs
from bls_agent.ops.terminal import escape_json
from bls_agent.ops.texts import load_texts
from bls_agent.project.agent_state import state_of

# ``module:agent``, as for ``run``. A word without a colon is the name of a project.
_AGENT: Final = re.compile(r"[\w.]+:[\w.]+(?:\(\))?")

_Source = Annotated[
    str, Argument(metavar="MODULE:AGENT|PROJECT", autocompletion=complete_project)
]
_Project = Annotated[
    str,
    Option(metavar="NAME", show_default=False, autocompletion=complete_project),
]


@command("asyncapi")
async def asyncapi(
    invocation: Invocation,
    source: _Source = "",
    project: _Project = "",
    timeout: TimeoutOption = 10.0,
    *,
    no_record: bool = False,
) -> Exit:
    """Print the AsyncAPI document of a project."""
    given = "asyncapi", source, project
    found = await _find(invocation, *given, timeout, no_record=no_record)
    document = write_asyncapi(found, load_texts("interface", invocation.language))
    if invocation.json:
        invocation.out.json(document)
    else:
        lines = encode_lines(document).split("\n")
        invocation.out.file("\n".join(map(escape_json, lines)))
    return Exit.DONE


@command("stubs")
async def stubs(
    invocation: Invocation,
    source: _Source = "",
    project: _Project = "",
    timeout: TimeoutOption = 10.0,
    *,
    no_record: bool = False,
) -> Exit:
    """Print the typed client of a project."""
    given = "stubs", source, project
    found = await _find(invocation, *given, timeout, no_record=no_record)
    code = write_stubs(found, load_texts("interface", invocation.language))
    if invocation.json:
        invocation.out.json({"code": code})
    else:
        invocation.out.file(code)
    return Exit.DONE


async def _find(
    invocation: Invocation,
    name: str,
    source: str,
    project: str,
    timeout: float,
    *,
    no_record: bool,
) -> ProjectInterface:
    """Return the commands of a project; ``name`` is the command that needs them.

    1. There is neither a source nor ``--project``, or there are both: raise ``Failure``.
    2. The source is ``module:agent``: import the agent, and send nothing.
    3. Any other source, or ``--project``: send ``help`` to the running project.
    """
    if bool(source) == bool(project):
        raise Failure("one_source", Exit.USAGE, hint="hint_source", command=name)
    if source and _AGENT.fullmatch(source):
        return await _import_agent(invocation, source)
    running = normalise(invocation, project or source)
    return await _ask(invocation, running, timeout, no_record=no_record)


async def _import_agent(invocation: Invocation, target: str) -> ProjectInterface:
    invocation.export_redis()  # before the import, which may read the variable
    with redirect_stdout(sys.stderr):  # keeps what the module prints out of the result
        agent = await load_agent(parse_target(target), Path.cwd())
        commands = read_interface(agent.describe_commands())
    settings = state_of(agent).settings
    return ProjectInterface(
        project=agent.project,
        address=agent.endpoint.address,
        commands=commands,
        status_ttl=settings.status_ttl,
        log_limit=settings.log_list_limit,
    )


async def _ask(
    invocation: Invocation, project: str, timeout: float, *, no_record: bool
) -> ProjectInterface:
    """Ask a running project for its commands; raise ``Failure`` if some may be missing.

    1. There is no outcome. The failure contains what is known about the command.
    2. The outcome is not ``succeeded``: the agent has no ``help``, or ``help`` failed.
    3. The result was shortened to fit into a log record.
    4. The result contains no command.
    """
    outcome = await fetch_help(invocation, project, timeout, no_record=no_record)
    commands = read_interface(outcome.result)
    problem = ""
    if not outcome.succeeded:
        problem = "help_failed"
    elif outcome.truncated:
        problem = "help_cut"
    elif not commands:
        problem = "help_empty"
    if problem:
        reason = outcome.error.get("message") or outcome.kind.value
        raise Failure(problem, hint="hint_import", project=project, reason=str(reason))
    endpoint = find_endpoint(invocation.redis)
    defaults = Settings()
    return ProjectInterface(
        project=project,
        address=endpoint.address,
        commands=commands,
        status_ttl=defaults.status_ttl,
        log_limit=defaults.log_list_limit,
    )
