"""Checks of the rights of one user of Redis: the doctor's own user, or a named one.

``ACL DRYRUN`` (Redis 7, Valkey) replies whether a request would be allowed, without
running the request. For each right the doctor tries a request that an agent or a console
would send.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, get_args

from bls_agent.connection.endpoint import Reply
from bls_agent.core.acl import CONSOLE_RIGHTS, RIGHTS, Mode, Right
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

SOURCE: Final = "docs/rights.md"
INSTANCE: Final = "doctor"  # stands for the name of an instance in keys

# Commands by the number of arguments after the key; the arguments' values do not matter.
_ONE: Final = (
    "set expire pexpire pexpireat rpush lpush blpop lindex sadd srem hget hdel zscore"
    " select client|setname client|unblock scan"
)
_TWO: Final = (
    "ltrim lrange lrem hset zadd zremrangebyscore zremrangebyrank getrange client|kill"
)
_REST: Final = {
    **dict.fromkeys(_ONE.split(), ("1",)),
    **dict.fromkeys(_TWO.split(), ("1", "1")),
}
# Command, or its first letter → type of key it needs; other commands take any key.
_TYPES: Final = {
    "get": RedisType.STRING, "set": RedisType.STRING, "s": RedisType.SET,
    "l": RedisType.LIST, "r": RedisType.LIST, "b": RedisType.LIST,
    "h": RedisType.HASH, "z": RedisType.ZSET,
}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One request that is tried for a right."""

    right: Right
    command: str  # a command of the right, as an ACL names it
    key: str  # `""` if the command takes no key
    request: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The request in the form that redis-cli accepts."""
        words = self.command.replace("|", " ").upper()
        option = f" … {self.right.option}" if self.right.option else ""
        return f"{words} {show(self.key)}".rstrip() + option


def trials(project: str) -> dict[str, list[Trial]]:
    """Return role → requests to try; roles are agent modes, ``replicas``, ``console``."""
    rows = {
        mode: [r for r in RIGHTS if mode in r.modes and not r.replicas and not r.extra]
        for mode in sorted(get_args(Mode))
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
            yield Trial(right, command, "", (*words, *_REST.get(command, ())))
            continue
        found = _keys_of(right.keys, project)
        keys = list(found)
        if command in ("eval", "evalsha"):
            yield Trial(right, command, keys[0], (*words, "x", str(len(keys)), *keys))
        elif command in ("lmove", "blmove"):
            patience = ("1",) if command == "blmove" else ()
            request = (*words, *keys[:2], "LEFT", "RIGHT", *patience)
            yield Trial(right, command, keys[0], request)
        else:
            option = (right.option,) if right.option else ()
            rest = (*_REST.get(command, ()), *option)
            wanted = _TYPES.get(command) or _TYPES.get(command[0])
            for key, kind in found.items():
                if len(keys) == 1 or wanted in (None, kind):
                    yield Trial(right, command, key, (command, key, *rest))


def _keys_of(rows: Sequence[KeyTemplate], project: str) -> dict[str, RedisType | None]:
    status = place_beside(PROJECT_STATUS.locate(project=project))
    control = place_beside(CONTROL.locate(project=project))
    inflight = INFLIGHT.locate(place=control, instance=INSTANCE)
    places = {INSTANCES: status, OWNER: place_beside(inflight)}
    found: dict[str, RedisType | None] = {}
    for row in rows:
        place = places.get(row, control)
        values = {"project": project, "place": place, "instance": INSTANCE}
        found[row.locate(**{name: values[name] for name in row.fields})] = row.type
    return found


@dataclass(frozen=True)
class Role:
    """A role in a project, and the rights that the user lacks for this role."""

    name: str  # a mode of an agent, `replicas` or `console`
    missing: Sequence[Trial]
    tried: int  # number of requests

    @property
    def possible(self) -> bool:
        """Whether the user has every right that is essential for the role."""
        return not any(trial.right.essential for trial in self.missing)


def roles_of(
    tried: Mapping[str, Sequence[Trial]], answers: Mapping[tuple[str, ...], Reply]
) -> list[Role]:
    """Group the replies to ACL DRYRUN by role; a right without a reply counts as granted."""
    found: list[Role] = []
    for name, some in tried.items():
        missing = [one for one in some if answers.get(one.request, b"OK") != b"OK"]
        found.append(Role(name, missing, len(some)))
    return found


class Access(NamedTuple):
    """A user, and its roles in a project."""

    user: str
    project: str = ""
    roles: Sequence[Role] = ()

    def worth(self) -> float:
        """Return a rank: the number of possible roles; lowest if no role was tried."""
        return sum(role.possible for role in self.roles) + 0.5 * bool(self.roles)


def check_access(access: Access) -> Iterator[Finding]:
    """Yield a finding for each missing right, or one finding if no role is possible."""
    known = {role.name: role for role in access.roles}
    if not known:
        return
    able = [name for name in ("blocking", "reliable", "compat") if known[name].possible]
    subject = {"user": show(access.user), "project": show(access.project)}
    best = known[able[0]] if able else known["console"]
    if not best.possible:
        lacking = [t.shown for t in known["blocking"].missing if t.right.essential]
        values = subject | {"missing": ", ".join(dict.fromkeys(lacking))}
        yield Finding("rights-none", Severity.ERROR, SOURCE, values=values)
        return
    for trial in best.missing:
        values = subject | {"right": trial.shown, "weaker": trial.right.weaker}
        values["role"] = best.name
        yield Finding("right-missing", Severity.NOTE, SOURCE, trial.key, values)
