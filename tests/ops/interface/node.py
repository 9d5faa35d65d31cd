"""What needs Node: the official parser of AsyncAPI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

PROGRAM = Path(__file__).with_name("parse_asyncapi.mjs")
MODULES = os.environ.get("TEST_NODE_MODULES", "")
HAS_PARSER = bool(
    shutil.which("node") and Path(MODULES, "@asyncapi", "parser").is_dir()
)
needs_parser = pytest.mark.skipif(
    not HAS_PARSER, reason="TEST_NODE_MODULES has no package @asyncapi/parser"
)


async def parse_documents(
    documents: Sequence[Any], folder: Path
) -> list[dict[str, Any]]:
    """Return what the parser finds, in the order of the documents."""
    shutil.copy(PROGRAM, folder)
    (folder / "node_modules").symlink_to(MODULES)
    lines = b"".join(orjson.dumps(one) + b"\n" for one in documents)
    with anyio.fail_after(120):
        ran = await anyio.run_process(["node", str(folder / PROGRAM.name)], input=lines)
    return [orjson.loads(line) for line in ran.stdout.splitlines()]
