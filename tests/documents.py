"""Pages of the documentation as tests: their code and commands run as they stand."""

from __future__ import annotations

import ast
import os
import re
from codeop import CommandCompiler
from inspect import isawaitable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from bls_agent.ops.cli import main


def blocks(page: Path, language: str = "python") -> list[str]:
    """The blocks of a language, in their order."""
    text = page.read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def typed(page: Path) -> list[str]:
    """What a reader types into a terminal; the output that a page shows is translated."""
    lines = "".join(blocks(page, "console")).splitlines()
    return [line for line in lines if line.startswith("$ ")]


def commands(page: Path) -> list[str]:
    """The lines of a page that call our program."""
    return [line for line in typed(page) if line.startswith("$ bls-agent ")]


def load(block: str, module: str) -> dict[str, Any]:
    """Run a block as the file of a module, and return its names."""
    names: dict[str, Any] = {"__name__": module}
    exec(compile(block, f"{module}.py", "exec"), names)
    return names


async def run_block(block: str, names: dict[str, Any]) -> None:
    """Run a block with the names that those before it have left."""
    mode = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    result = eval(compile(block, names["__name__"], "exec", flags=mode), names)
    if isawaitable(result):
        with anyio.fail_after(20):
            await result


async def run_alone(block: str) -> None:
    """Run a block that needs no other: a whole program in a thread, as from a file."""
    if not is_program(block):
        await run_block(block, {"__name__": "document"})
        return
    code = compile(block, "program.py", "exec")
    with anyio.fail_after(20):
        await anyio.to_thread.run_sync(exec, code, {"__name__": "__main__"})


def is_program(block: str) -> bool:
    """A program is saved as a file; any other block is pasted into ``python -m asyncio``."""
    return 'if __name__ == "__main__":' in block


def unfinished_paste(block: str) -> str:
    """Paste a block line by line, where an empty line ends what is indented.

    Return the lines that wait for more, or raise SyntaxError as the interpreter does.
    """
    compiler, lines = CommandCompiler(), list[str]()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for line in [*block.splitlines(), ""]:
        lines.append(line)
        if compiler("\n".join(lines)) is not None:
            lines.clear()
    return "".join(lines)


async def run_commands(page: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the commands of a page: each ends as one that has looked; say how many."""
    for name in [name for name in os.environ if name.startswith("BLS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("BLS_REDIS_URL", url)
    known = [line.split()[2:] for line in commands(page)]
    for words in known:
        with anyio.fail_after(60):
            code = await anyio.to_thread.run_sync(main, words, abandon_on_cancel=True)
        assert code in (0, 3), words
    return len(known)
