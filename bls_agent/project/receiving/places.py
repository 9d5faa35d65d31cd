"""Where the keys of reliable receiving lie: beside the control list, in its slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bls_agent.errors import (
    RedisRefusedError,
    RedisUnavailableError,
    WrongTypeError,
)
from bls_agent.keys import (
    DEAD_LETTERS,
    DELIVERIES,
    INFLIGHT,
    INFLIGHT_LISTS,
    OWNER,
    SEEN,
)
from bls_agent.names import place_beside
from bls_agent.wire import Wire

__all__ = ["Places", "explain_refusal", "find_wrong_type"]

_NEEDED: Final = ("unknown_command", "no_permission", "refused", "unsupported")


@dataclass(frozen=True)
class Places:
    """The keys of one control list, in which reliable receiving keeps its books.

    Attributes:
        control: The contract's list, from which commands are taken.
        lists: A set: the names of all in-flight lists.
        deliveries: A hash: how often a command was handed out that came back.
        seen: A sorted set: ids of commands that ended.
        dead: A list: commands that were handed out too often.
    """

    control: str
    lists: str
    deliveries: str
    seen: str
    dead: str

    @classmethod
    def beside(cls, control: str) -> Places:
        """Find the keys that belong to a control list."""
        place = place_beside(control)
        return cls(
            control=control,
            lists=INFLIGHT_LISTS.locate(place=place),
            deliveries=DELIVERIES.locate(place=place),
            seen=SEEN.locate(place=place),
            dead=DEAD_LETTERS.locate(place=place),
        )

    def inflight(self, instance: str) -> str:
        """The list of what one instance has taken and not ended."""
        return INFLIGHT.locate(place=place_beside(self.control), instance=instance)

    def owner(self, inflight: str) -> str:
        """The key that is there as long as the owner of an in-flight list lives."""
        return OWNER.locate(place=place_beside(inflight))

    def is_inflight(self, key: str) -> bool:
        """Tell whether a name in the set of lists can be one of ours."""
        return key.startswith(self.inflight("")) and key != self.inflight("")

    def types(self, inflight: str) -> Mapping[str, str]:
        """Key → the type that it should have."""
        return {
            self.control: "list",
            inflight: "list",
            self.owner(inflight): "string",
            self.lists: "set",
            self.deliveries: "hash",
            self.seen: "zset",
            self.dead: "list",
        }


async def find_wrong_type(
    wire: Wire, error: RedisUnavailableError, types: Mapping[str, str]
) -> WrongTypeError | None:
    """Find out which key is to blame for a refusal: a script does not tell.

    Args:
        wire: Over which to look.
        error: What Redis said.
        types: Key → the type that it should have.
    """
    if error.kind not in ("wrong_type", "refused"):
        return None
    try:
        found = await wire.call_many([("TYPE", key) for key in types])
    except RedisUnavailableError:
        return None
    for (key, expected), reply in zip(types.items(), found, strict=True):
        if isinstance(reply, bytes) and reply.decode() not in (expected, "none"):
            return WrongTypeError(key, expected)
    return None


def explain_refusal(error: RedisUnavailableError) -> RedisRefusedError | None:
    """Say what reliable receiving needs, if that is what Redis has refused."""
    if not isinstance(error, RedisRefusedError) or error.connecting:
        return None
    if error.kind not in _NEEDED:
        return None
    return RedisRefusedError(
        error.kind,
        f"{error.reason}; mode 'reliable' needs BLMOVE and scripts (Redis 6.2 or "
        "newer, and the rights): use mode='blocking' or mode='compat' instead",
        address=error.address,
    )
