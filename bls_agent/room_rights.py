"""What one part of a room needs in Redis, and how such rights become ACL rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["RoomRight", "room_acl_rules"]


class RoomRight(NamedTuple):
    """What one part of a room needs.

    Attributes:
        part: What it is for: a class of the room, or what somebody does there.
        keys: Glob patterns; none for commands without keys.
        commands: As an ACL names them.
        writes: Whether it is for writing.
    """

    part: str
    keys: tuple[str, ...]
    commands: str
    writes: bool = False

    @property
    def words(self) -> list[str]:
        """Its commands, as an ACL allows them."""
        return [f"+{command}" for command in self.commands.split()]

    @property
    def selector(self) -> str:
        """Its commands on its keys alone."""
        access = "%RW~" if self.writes else "%R~"
        opened = (f"{access}{pattern}" for pattern in self.keys)
        return f"({' '.join([*self.words, *opened])})"


def room_acl_rules(
    rights: Sequence[RoomRight], *, write: bool, selectors: bool
) -> list[str]:
    """Give the rights of a room as the words of an ACL.

    Args:
        rights: All that the room needs.
        write: Whether those for writing are given, too.
        selectors: For Redis 7 and newer, and Valkey: each command on its keys alone.
    """
    given = [right for right in rights if write or not right.writes]
    keyed = [right for right in given if right.keys]
    keyless = (word for right in given if not right.keys for word in right.words)
    rules = ["-@all", *keyless]
    if selectors:
        return [*rules, *(right.selector for right in keyed)]
    rules += (word for right in keyed for word in right.words)
    patterns = (f"~{pattern}" for right in keyed for pattern in right.keys)
    return list(dict.fromkeys([*rules, *patterns]))
