"""Lua scripts with typed arguments; the package reads each script once.

A script is a ``.lua`` file in this folder. The comment at its top lists the keys that
the script uses, and explains why its work must be one atomic step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from bls_agent.core.errors import RedisUnavailableError, WrongTypeError

if TYPE_CHECKING:
    from bls_agent.connection.connection import Connection
    from bls_agent.connection.endpoint import Argument, Reply
    from bls_agent.connection.pool import ConnectionPool


class Script:
    """One script; its text is sent only to a server that has not loaded the script."""

    def __init__(
        self,
        name: str,
        *,
        behind: str = "",
        keys: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> None:
        """Read no file yet.

        The script may call the functions of the file ``behind``. ``keys`` and
        ``arguments`` are names of local variables that the script gets for its keys and
        arguments. Further arguments begin at ``ARGV[rest]``.
        """
        self.name = name
        self._behind = behind
        self.keys = keys
        self.arguments = arguments

    @cached_property
    def text(self) -> bytes:
        names = [self._behind, self.name] if self._behind else [self.name]
        files = [Path(__file__).with_name(f"{name}.lua") for name in names]
        bound = [
            *(f"local {name} = KEYS[{at}]\n" for at, name in enumerate(self.keys, 1)),
            *(
                f"local {name} = ARGV[{at}]\n"
                for at, name in enumerate(self.arguments, 1)
            ),
        ]
        if self.arguments:
            bound.append(f"local rest = {len(self.arguments) + 1}\n")
        return "".join(bound).encode() + b"".join(file.read_bytes() for file in files)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha1(self.text, usedforsecurity=False).hexdigest()

    def order(self, **named: Argument) -> list[Argument]:
        """Return arguments in the order in which the script reads them from ARGV."""
        return [named[name] for name in self.arguments]

    async def run(
        self,
        where: ConnectionPool | Connection,
        keys: Sequence[Argument],
        arguments: Sequence[Argument],
    ) -> Reply:
        """Run the script; raise the same errors as :meth:`Connection.call`."""
        (reply,) = await run_scripts(where, [(self, keys, arguments)])
        if isinstance(reply, RedisUnavailableError):
            raise reply
        return reply

    async def run_many(
        self,
        where: ConnectionPool | Connection,
        runs: Sequence[tuple[Sequence[Argument], Sequence[Argument]]],
    ) -> list[Reply]:
        """Run the script once for each pair of keys and arguments.

        All keys of one run must have the same slot.
        """
        return await run_scripts(where, [(self, *run) for run in runs])

    def request(
        self,
        keys: Sequence[Argument],
        arguments: Sequence[Argument],
        *,
        known: bool = True,
    ) -> tuple[Argument, ...]:
        """Return the request for a run; unless ``known``, with the script's text."""
        name, text = ("EVALSHA", self.digest) if known else ("EVAL", self.text)
        return (name, text, len(keys), *keys, *arguments)


ScriptRun: TypeAlias = "tuple[Script, Sequence[Argument], Sequence[Argument]]"


async def run_scripts(
    where: ConnectionPool | Connection, runs: Sequence[ScriptRun]
) -> list[Reply]:
    """Run several scripts; the replies and errors are those of ``call_many``."""
    replies = await where.call_many(
        [script.request(keys, arguments) for script, keys, arguments in runs]
    )
    unknown = [
        at
        for at, reply in enumerate(replies)
        if isinstance(reply, RedisUnavailableError) and reply.kind == "no_script"
    ]
    if not unknown:
        return replies
    # Each request carries the text, because each may go to a server without the script.
    texts = [
        script.request(keys, arguments, known=False)
        for script, keys, arguments in (runs[at] for at in unknown)
    ]
    try:
        found = await where.call_many(texts)
    except RedisUnavailableError as error:
        error.ambiguous |= len(unknown) < len(runs)  # the other runs were executed
        raise
    for at, reply in zip(unknown, found, strict=True):
        replies[at] = reply
    return replies


async def find_wrong_type(
    connection: Connection, error: RedisUnavailableError, types: Mapping[str, str]
) -> WrongTypeError | None:
    """Return an error with the first key of a wrong type; ``None`` if there is none.

    This is needed because the error of a script does not name the key.
    """
    if error.kind not in ("wrong_type", "refused"):
        return None
    try:
        found = await connection.call_many([("TYPE", key) for key in types])
    except RedisUnavailableError:
        return None
    for (key, expected), reply in zip(types.items(), found, strict=True):
        if isinstance(reply, bytes) and reply.decode() not in (expected, "none"):
            return WrongTypeError(key, expected)
    return None


ADD_EVENTS: Final = Script("add_events")
ADD_MEMBERS: Final = Script("add_members")
ADD_SEEN: Final = Script("add_seen")
BEAT: Final = Script("beat", behind="lease")
CRAWL_PUSH: Final = Script("crawl_push")
CRAWL_SETTLE: Final = Script("crawl_settle", behind="crawl_failures")
CRAWL_TAKE: Final = Script("crawl_take", behind="crawl_failures")
END_LEASE: Final = Script("end_lease")
EXCHANGE: Final = Script(
    "exchange",
    keys=("control", "inflight", "owner", "lists", "deliveries", "seen"),
    arguments=("token", "limit", "concurrency", "startable", "window", "ids"),
)
HAND_BACK: Final = Script(
    "hand_back",
    keys=("control", "inflight", "owner", "lists", "deliveries", "dead_letters"),
    arguments=("token", "most", "kept", "seconds", "is_final", "stays"),
)
HOLD_LEASE: Final = Script("hold_lease", behind="lease")
HOLD_RUN: Final = Script("hold_run", behind="lease")
PUT_TEXT: Final = Script("put_text")
RECLAIM: Final = Script(
    "reclaim",
    behind="lease",
    keys=("control", "inflight", "owner", "lists", "deliveries", "dead_letters"),
    arguments=("milliseconds", "limit", "most", "kept", "seconds"),
)
SETTLE_DEAD: Final = Script(
    "settle_dead",
    keys=("control", "dead_letters", "deliveries"),
    arguments=("requeues",),
)
SPEAK: Final = Script("speak")
SWAP_TEXT: Final = Script("swap_text")
TRIM_HEAD: Final = Script("trim_head")
WRITE_ASSET: Final = Script("write_asset")
