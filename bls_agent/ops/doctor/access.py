"""The rights of the doctor's own user, one by one.

``ACL DRYRUN`` (Redis 7, Valkey) says whether a request would be allowed, without
running it. For each right the doctor tries a request as an agent or a console would
send it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bls_agent.connection.endpoint import Argument, Reply
from bls_agent.core.acl import CONSOLE_RIGHTS, RIGHTS, Right
from bls_agent.core.keys import (
    CONTROL,
    INFLIGHT,
    INSTANCES,
    OWNER,
    PROJECT_STATUS,
    KeyTemplate,
    RedisType,
    place_beside,
)
from bls_agent.ops.doctor.rule import Finding, Severity, show

__all__ = ["Role", "Trial", "check_access", "roles_of", "trials"]

SOURCE: Final = "docs/rights.md"
INSTANCE: Final = "doctor"  # in the place of an instance's name
_TEXT: Final = "x"

# What follows the key; only the number of arguments counts.
_REST: Final[Mapping[str, tuple[Argument, ...]]] = {
    "set": (_TEXT,), "expire": (1,), "pexpire": (1,), "pexpireat": (1,),
    "rpush": (_TEXT,), "lpush": (_TEXT,), "ltrim": (0, 0), "lrange": (0, 0),
    "blpop": (0,), "lindex": (0,), "lrem": (1, _TEXT), "sadd": (_TEXT,),
    "srem": (_TEXT,), "hget": (_TEXT,), "hset": (_TEXT, _TEXT), "hdel": (_TEXT,),
    "zadd": (1, _TEXT), "zscore": (_TEXT,), "zremrangebyscore": (0, 0),
    "zremrangebyrank": (0, 0), "getrange": (0, 0),
}  # fmt: skip
_KEYLESS: Final[Mapping[str, tuple[Argument, ...]]] = {
    "select": (0,), "client|setname": (_TEXT,), "client|unblock": (1,),
    "client|kill": ("ID", 1), "scan": (0,),
}  # fmt: skip
_ANY_TYPE: Final = frozenset(
    {"del", "exists", "expire", "pexpire", "pexpireat", "type"}
)
_BY_LETTER: Final = {
    "l": RedisType.LIST, "r": RedisType.LIST, "b": RedisType.LIST,
    "h": RedisType.HASH, "z": RedisType.ZSET, "s": RedisType.SET,
}  # fmt: skip

_MODES: Final = frozenset({"blocking", "compat", "reliable"})


@dataclass(frozen=True)
class Trial:
    """One request that is tried for a right."""

    right: Right
    command: str  # the one command of the right, as an ACL names it
    key: str  # `""` where the command takes none
    request: tuple[Argument, ...]

    @property
    def shown(self) -> str:
        """The request as redis-cli takes it."""
        words = self.command.replace("|", " ").upper()
        option = f" … {self.right.option}" if self.right.option else ""
        return f"{words} {show(self.key)}".rstrip() + option


def trials(project: str) -> dict[str, list[Trial]]:
    """Make the requests of each role: the modes of an agent, replicas, a console."""
    rows = {
        mode: [r for r in RIGHTS if mode in r.modes and not r.replicas and not r.extra]
        for mode in sorted(_MODES)
    }
    rows["replicas"] = [right for right in RIGHTS if right.replicas]
    rows["console"] = list(CONSOLE_RIGHTS)
    return {
        role: [trial for right in rights for trial in _trials_of(right, project)]
        for role, rights in rows.items()
    }


def _trials_of(right: Right, project: str) -> Iterator[Trial]:
    for command in right.command.split():
        words = tuple(command.split("|"))
        if not right.keys:
            yield Trial(right, command, "", (*words, *_KEYLESS.get(command, ())))
        elif command in ("eval", "evalsha"):
            keys = [key for key, _ in _keys_of(right.keys, project)]
            yield Trial(right, command, keys[0], (*words, _TEXT, len(keys), *keys))
        elif command in ("lmove", "blmove"):
            keys = [key for key, _ in _keys_of(right.keys, project)]
            patience = (0,) if command == "blmove" else ()
            ways = ("LEFT", "RIGHT", *patience)
            yield Trial(right, command, keys[0], (*words, *keys[:2], *ways))
        else:
            yield from _one_key_trials(right, command, project)


def _one_key_trials(right: Right, command: str, project: str) -> Iterator[Trial]:
    rest = (*_REST.get(command, ()), *((right.option,) if right.option else ()))
    wanted = (
        RedisType.STRING if command in ("set", "get") else _BY_LETTER.get(command[0])
    )
    for key, kind in _keys_of(right.keys, project):
        if len(right.keys) == 1 or command in _ANY_TYPE or kind is wanted:
            yield Trial(right, command, key, (command, key, *rest))


def _keys_of(
    rows: Sequence[KeyTemplate], project: str
) -> list[tuple[str, RedisType | None]]:
    status = place_beside(PROJECT_STATUS.locate(project=project))
    control = place_beside(CONTROL.locate(project=project))
    inflight = INFLIGHT.locate(place=control, instance=INSTANCE)
    places = {INSTANCES: status, OWNER: place_beside(inflight)}
    found: list[tuple[str, RedisType | None]] = []
    for row in rows:
        place = places.get(row, control)
        values = {"project": project, "place": place, "instance": INSTANCE}
        named = {name: values[name] for name in row.fields}
        found.append((row.locate(**named), row.type))
    return found


@dataclass(frozen=True)
class Role:
    """What the user may be in a project, by rights."""

    name: str  # a mode of an agent, `replicas` or `console`
    missing: Sequence[Trial]
    tried: int  # requests

    @property
    def possible(self) -> bool:
        """Whether every right that the role cannot do without is granted."""
        return not any(trial.right.essential for trial in self.missing)


def roles_of(
    tried: Mapping[str, Sequence[Trial]], answers: Mapping[tuple[Argument, ...], Reply]
) -> list[Role]:
    """Group the answers of ACL DRYRUN by role; no answer counts as granted."""
    return [
        Role(
            name,
            [t for t in some if answers.get(t.request, b"OK") != b"OK"],
            len(some),
        )
        for name, some in tried.items()
    ]


def check_access(user: str, project: str, roles: Iterable[Role]) -> Iterator[Finding]:
    """Find what the user's rights do not allow in a project, and what that weakens."""
    known = {role.name: role for role in roles}
    if not known:
        return
    able = [name for name in ("blocking", "reliable", "compat") if known[name].possible]
    whose = {"user": show(user), "project": show(project)}
    best = known[able[0]] if able else known["console"]
    if not best.possible:
        lacking = [t.shown for t in known["blocking"].missing if t.right.essential]
        values = whose | {"missing": ", ".join(dict.fromkeys(lacking))}
        yield Finding("rights-none", Severity.ERROR, SOURCE, values=values)
        return
    for trial in best.missing:
        values = whose | {"right": trial.shown, "weaker": trial.right.weaker}
        values["role"] = best.name
        yield Finding("right-missing", Severity.NOTE, SOURCE, trial.key, values)
