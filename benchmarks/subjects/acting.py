"""How a subject is told what to do and says what it found.

Nothing but the standard library: it also runs where only a peer is installed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["Options", "act", "cued", "on_cue", "say"]

Options = dict[str, Any]
T = TypeVar("T")


def say(**words: object) -> None:
    """Tell the stage something."""
    print(json.dumps(words), flush=True)


async def cued() -> None:
    """Wait for the next cue of the stage."""
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def on_cue(part: Callable[[], Awaitable[T]], times: int) -> list[T]:
    """Do the same thing on each cue, and say each time that it is done.

    So several subjects can take turns, and meet the same machine.
    """
    say(ready=True)
    done = []
    for _ in range(times):
        await cued()
        done.append(await part())
        say(done=True)
    return done


def act(part: Callable[[Options], Coroutine[Any, Any, dict[str, Any]]]) -> None:
    """Play a part on the event loop that is asked for, and tell its result."""
    options: Options = json.loads(sys.argv[1])
    factory = None
    if options["loop"] == "uvloop":
        import uvloop  # noqa: PLC0415 - only who is asked for it needs it

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        say(result=runner.run(part(options)))
