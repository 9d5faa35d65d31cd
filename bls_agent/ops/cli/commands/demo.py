"""``bls-agent demo``: an agent and a console at work, on a server of their own."""

from __future__ import annotations

from typing import Annotated

import typer

from bls_agent.ops.cli.command import command, new_app
from bls_agent.ops.cli.exits import Exit, Failure
from bls_agent.ops.cli.invocation import Invocation

__all__ = ["demo"]

app = new_app()


@command(app, "demo")
def demo(
    invocation: Invocation,
    serve: Annotated[bool, typer.Option("--serve", help="opt_serve")] = False,
    console: Annotated[
        bool, typer.Option("--console", help="opt_demo_console")
    ] = False,
) -> Exit:
    """Tell the story of ``python -m bls_agent.demo``."""
    from bls_agent.demo import main

    if invocation.json:
        raise Failure("no_json", Exit.USAGE, command="demo")
    invocation.export_redis()
    wanted = [*["--serve"] * serve, *["--console"] * console]
    return Exit(main(["--lang", invocation.language, *wanted]))
