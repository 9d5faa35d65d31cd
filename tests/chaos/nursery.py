"""Processes to be killed: one that has imported everything, and forks an agent at will.

It reads words, one per line: ``go SEED`` forks an agent and prints its process id,
``wait`` waits for it and prints its exit code. Its end is the end of its input.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import anyio
import orjson

from bls_agent import ProjectAgent
from bls_agent.testing.chaos import History


def live(options: dict[str, Any], seed: int) -> None:
    """Be an agent until the process ends."""
    rng = random.Random(seed)
    history = History(Path(options["history"]))
    agent = ProjectAgent(
        options["project"], redis=options["url"], **options["settings"]
    )
    history.attach(agent)

    @agent.command
    async def mark(number: int) -> int:
        await anyio.sleep(rng.uniform(0, 0.02))
        return number

    @agent.command
    async def fork() -> None:
        if not os.fork():
            agent.log.info("a child says nothing")
            os._exit(0)
        os.wait()

    anyio.run(agent.run)


def main() -> None:
    options = orjson.loads(sys.argv[1])
    child = 0
    for line in sys.stdin:
        match line.split():
            case ["go", seed]:
                sys.stdout.flush()
                child = os.fork()
                if not child:
                    try:
                        live(options, int(seed))
                    finally:
                        os._exit(1 if sys.exc_info()[0] else 0)
                print(child, flush=True)
            case _:
                _, status = os.waitpid(child, 0)
                print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
