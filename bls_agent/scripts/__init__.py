"""Lua scripts, loaded once, with a typed face.

A script stands in a ``.lua`` file beside this one, headed by the keys it touches and
the reason why it must be one step.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Final

from bls_agent.endpoint import Argument, Reply
from bls_agent.errors import RedisUnavailableError
from bls_agent.wire import Wire

__all__ = ["SPEAK", "TRIM_HEAD", "Script"]


class Script:
    """One script; its text travels only when the server does not know it yet."""

    def __init__(self, name: str) -> None:
        """Remember the name; the file is read at the first run."""
        self.name = name

    @cached_property
    def text(self) -> bytes:
        """The Lua source."""
        return Path(__file__).with_name(f"{self.name}.lua").read_bytes()

    @cached_property
    def digest(self) -> str:
        """The SHA-1 under which the server knows the script."""
        return hashlib.sha1(self.text, usedforsecurity=False).hexdigest()

    async def run(
        self, wire: Wire, keys: list[str], arguments: list[Argument]
    ) -> Reply:
        """Run the script.

        Raises:
            RedisUnavailableError: As :meth:`Wire.call`.
        """
        try:
            return await wire.call("EVALSHA", self.digest, len(keys), *keys, *arguments)
        except RedisUnavailableError as error:
            if error.kind != "no_script":
                raise
        return await wire.call("EVAL", self.text, len(keys), *keys, *arguments)


SPEAK: Final = Script("speak")
TRIM_HEAD: Final = Script("trim_head")
