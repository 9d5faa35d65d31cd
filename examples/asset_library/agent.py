"""An agent with a library: tools, prompts and skills from the folder beside it.

Shows: a library that is kept equal to its source, tools as a language model is told of
them, a prompt that is filled in, and changes that arrive while it runs.
Needs: ``pip install '.[assets]'`` and a Redis (``python -m bls_agent.devserver`` starts one).
Run:   ``python examples/asset_library/agent.py [project [folder]]``; then edit a YAML file,
or ``bls-agent call 资产助手 summarize -s text=…``. Ctrl-C ends it in order.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from bls_agent import ProjectAgent
from bls_agent.assets import AssetLibrary, AssetSync, DirectorySource

arguments = dict(enumerate(sys.argv))
agent = ProjectAgent(arguments.get(1, "资产助手"))
library = AssetLibrary(agent)
source = DirectorySource(arguments.get(2, Path(__file__).parent))


@agent.command
async def tools() -> list[dict[str, object]]:
    found = [await library.get(one.id) for one in await library.list("tool")]
    return [one.agent_specs for one in found if one and one.agent_specs]


@agent.command
async def summarize(text: str, sentences: int = 3) -> str:
    """Fill in the prompt; a language model would be asked with it."""
    prompt = await library.get("summarizer")
    specs = (prompt and prompt.agent_specs) or {"template": "{text}"}
    return str(specs["template"]).format(text=text, sentences=sentences)


async def tell_changes() -> None:
    async for asset_id in library.watch():
        asset = await library.get(asset_id)
        print(asset_id, asset.version if asset else "deleted", flush=True)


async def main() -> None:
    async with (
        library,
        AssetSync(agent, source) as sync,
        anyio.create_task_group() as g,
    ):
        g.start_soon(tell_changes)
        g.start_soon(sync.run_forever, 2.0)  # seconds; 300 for a repository
        await agent.run()
        g.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
