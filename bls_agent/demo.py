"""An agent and a console at work: ``python -m bls_agent.demo``.

An order service with an agent, and a console that sends it good commands, bad ones and
rubbish, while Redis is killed under both and brought back. Everything on the screen,
and in the table at the end, was read from Redis by the console.

The server is one of our own (the ``server`` extra), or that of ``BLS_REDIS_URL``, which
is not killed. Exit code 0: everything happened; 1: something did not; 2: the demo could
not run; 130: Ctrl-C.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import anyio

from bls_agent.console import Console
from bls_agent.core.errors import BlsError
from bls_agent.core.redaction import mask_url
from bls_agent.devserver import DevServer
from bls_agent.ops import terminal
from bls_agent.ops.demo_story import (
    STEPS,
    Mark,
    Place,
    Result,
    Screen,
    Stage,
    go_through,
    make_agent,
)
from bls_agent.ops.texts import Texts, find_language, load_texts, make_parser
from bls_agent.project.messages import Status

__all__ = ["main"]

PROGRAM: Final = "python -m bls_agent.demo"
TIDY_DEADLINE: Final = 3.0
FAREWELL_DEADLINE: Final = 1.0  # seconds in which the last status is still shown


@contextmanager
def find_place(environ: Mapping[str, str], texts: Texts) -> Generator[Place]:
    """Use the server of ``BLS_REDIS_URL``, or start one that survives ``kill -9``."""
    if url := environ.get("BLS_REDIS_URL"):
        token = secrets.token_hex(3)
        project = texts["project_on_your_server"].format(token=token)
        yield Place(url, project, None)
        return
    with DevServer(append_only=True) as server:
        yield Place(server.url, texts["project"], server)


async def play(place: Place, screen: Screen) -> int:
    """Run the whole story and give the exit code."""
    began = anyio.current_time()
    async with at_the_console(place, screen) as stage, stage.life:
        results = await go_through(STEPS, stage)
    return conclude(results, screen, anyio.current_time() - began)


@asynccontextmanager
async def at_the_console(place: Place, screen: Screen) -> AsyncGenerator[Stage]:
    """Open the console and watch the project as it does.

    Its keys are deleted at the end, if the server stays.
    """
    packed = anyio.Event()
    agent = make_agent(place, screen.texts, packed)
    async with Console(place.url) as console:
        await console.status(place.project)  # without Redis there is nothing to see
        stage = Stage(place, agent, console, screen, packed)
        try:
            async with anyio.create_task_group() as watching:
                watching.start_soon(stage.follow_logs)
                watching.start_soon(stage.follow_status)
                yield stage
                watching.cancel_scope.cancel()
        finally:
            if place.server is None:
                with anyio.move_on_after(TIDY_DEADLINE, shield=True):
                    await tidy_up(stage)


async def tidy_up(stage: Stage) -> None:
    """Delete the project's keys; name them where Redis refuses that."""
    try:
        await stage.console.forget(stage.place.project, force=True)
    except BlsError:
        keys = ", ".join(stage.place.keys)
        stage.screen.text(stage.texts["not_deleted"].format(keys=keys))


def conclude(results: Sequence[Result], screen: Screen, seconds: float) -> int:
    """Show the table and give the exit code: 0 only if no step has failed."""
    screen.heading(screen.texts["summary"])
    for result in results:
        screen.mark(result.mark, screen.texts[f"step_{result.name}"], result.detail)
    failed = sum(result.mark is Mark.FAILED for result in results)
    skipped = any(result.mark is Mark.SKIPPED for result in results)
    name = "some_failed" if failed else "some_skipped" if skipped else "all_shown"
    values = {"failed": failed, "count": len(results), "seconds": seconds}
    screen.text(screen.texts[name].format(**values))
    return 1 if failed else 0


async def serve(place: Place, screen: Screen) -> int:
    """Keep the agent running for other clients, and show what the console sees."""
    async with at_the_console(place, screen) as stage:
        stage.packed.set()
        show_hints(place, screen)
        await stage.agent.run()
        with anyio.move_on_after(FAREWELL_DEADLINE):
            await stage.shows(Status.OFFLINE)
    return 0


def show_hints(place: Place, screen: Screen) -> None:
    """Write commands for redis-cli, each on one line that can be copied."""
    status, console, control = place.keys
    url = place.url if place.server else '"$BLS_REDIS_URL"'
    screen.heading(screen.texts["serving"])
    for name, words in {
        "status": f"GET '{status}'",
        "logs": f"LRANGE '{console}' -5 -1",
        "command": f"""RPUSH '{control}' '{{"command":"reload","args":{{"force":true}}}}'""",
        "help": f"""RPUSH '{control}' '{{"command":"help"}}'""",
    }.items():
        screen.write(f"# {screen.texts[f'hint_{name}']}")
        screen.write(f"redis-cli -u {url} --raw {words}")
    screen.write("")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and give its exit code."""
    logging.getLogger("bls_agent").addHandler(logging.NullHandler())  # shown anyway
    given = sys.argv[1:] if arguments is None else arguments
    texts = load_texts("demo", find_language(given, os.environ))
    parser = make_parser(PROGRAM, texts["demo_help"], texts)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--serve", action="store_true", help=texts["opt_serve"])
    what.add_argument("--console", action="store_true", help=texts["opt_console"])
    options = parser.parse_args(given)
    out = terminal.Screen(sys.stdout, os.environ, needed=False)
    screen = Screen(out, texts)
    try:
        if options.console:
            from bls_agent.ops.demo_fleet import serve_fleet  # noqa: PLC0415 - the extra web

            return serve_fleet(screen, os.environ.get("BLS_REDIS_URL", ""))
        screen.text(texts["title"], "bold")
        with find_place(os.environ, texts) as place:
            whose = texts["our_server" if place.server else "your_server"]
            screen.text(whose.format(url=mask_url(place.url), project=place.project))
            return anyio.run(serve if options.serve else play, place, screen)
    except BlsError as error:
        parser.exit(2, f"{error}\n")
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
