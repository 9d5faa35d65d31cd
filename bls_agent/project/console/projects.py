"""How the console finds out which projects there are."""

from __future__ import annotations

from typing import Final

from bls_agent.connection.endpoint import Reply
from bls_agent.connection.keyed_wires import KeyedWires
from bls_agent.core.errors import DecodeError, RedisRefusedError, RedisUnavailableError
from bls_agent.core.keys import CONTROL, PROJECT_CONSOLE, PROJECT_STATUS
from bls_agent.project.messages import Status

__all__ = ["find_projects"]

TEMPLATES: Final = (PROJECT_STATUS, PROJECT_CONSOLE, CONTROL)


async def find_projects(wires: KeyedWires) -> dict[str, Status | None]:
    """Find every project that has any key; leave out whose status may not be read.

    Returns:
        Name → status, sorted by name; ``None`` for no valid status.

    Raises:
        RedisUnavailableError: Redis cannot answer, or refuses every status.
    """
    names: set[str] = set()
    for template in TEMPLATES:
        async for key in wires.scan(template.pattern()):
            parsed = template.parse(key)
            if parsed is not None:
                names.add(parsed["project"])
    found = sorted(names)
    keys = [PROJECT_STATUS.locate(project=name) for name in found]
    # Not MGET: one key that may not be read would refuse the others, too.
    requests = [("GET", key.encode("utf-8", "surrogateescape")) for key in keys]
    replies = await wires.read_many(requests)
    refused = [reply for reply in replies if _is_refusal(reply)]
    if refused and len(refused) == len(replies):
        raise refused[0]
    pairs = zip(found, replies, strict=True)
    return {name: _status_in(reply) for name, reply in pairs if not _is_refusal(reply)}


def _is_refusal(reply: Reply) -> bool:
    return isinstance(reply, RedisRefusedError) and reply.kind == "no_permission"


def _status_in(reply: Reply) -> Status | None:
    if isinstance(reply, RedisUnavailableError):
        if reply.kind != "wrong_type":
            raise reply
        return None
    try:
        return None if reply is None else Status.decode(reply)
    except DecodeError:
        return None
