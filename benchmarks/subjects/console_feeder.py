"""Sends commands as a console does, on cue, each with the time of its push."""

from __future__ import annotations

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.peers.work import feed_on_cue
from bls_agent import Console


async def run(options: Options) -> dict[str, int]:
    """Send ``count`` commands."""
    async with Console(options["url"]) as console:
        project = options["project"]
        await feed_on_cue(
            lambda at: console.send(project, "note", {"at": at}), options["count"]
        )
    return {"pushed": options["count"]}


if __name__ == "__main__":
    act(run)
