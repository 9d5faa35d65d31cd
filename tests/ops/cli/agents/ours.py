"""An agent of this package that is judged; its handlers are those of the vectors."""

from __future__ import annotations

import os
from typing import Literal

import anyio

from bls_agent import ProjectAgent

agent = ProjectAgent(os.environ["BLS_PROJECT"])


@agent.command
async def echo(word: str = "", **others: object) -> dict[str, str]:
    return {"word": word}


@agent.command
async def typed(
    count: int,
    ratio: float = 1.0,
    name: str = "",
    mode: Literal["fast", "safe"] = "fast",
    items: list[int] | None = None,
) -> None: ...


@agent.command("重新加载")
async def reload(force: bool = False) -> None: ...


anyio.run(agent.run)
