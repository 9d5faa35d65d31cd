"""The rights of one user of Redis, one by one: the doctor's own, or one that is named.

``ACL DRYRUN`` (Redis 7, Valkey) says whether a request would be allowed, without
running it. For each right the doctor tries a request as an agent or a console would
send it.
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
INSTANCE: Final = "doctor"  # in the place of an instance's name

# By command how many arguments follow the key; what they are does not count.
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
# The type that a command needs, by its name or its first letter; others take any key.
_TYPES: Final = {
    "get": RedisType.STRING, "set": RedisType.STRING, "s": RedisType.SET,
    "l": RedisType.LIST, "r": RedisType.LIST, "b": RedisType.LIST,
    "h": RedisType.HASH, "z": RedisType.ZSET,
}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """One request that is tried for a right."""

    right: Right
    command: str  # the one command of the right, as an ACL names it
    key: str  # `""` where the command takes none
    request: tuple[str, ...]

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
    """What the user may be in a project, by rights."""

    name: str  # a mode of an agent, `replicas` or `console`
    missing: Sequence[Trial]
    tried: int  # requests

    @property
    def possible(self) -> bool:
        """Whether every right that the role cannot do without is granted."""
        return not any(trial.right.essential for trial in self.missing)


def roles_of(
    tried: Mapping[str, Sequence[Trial]], answers: Mapping[tuple[str, ...], Reply]
) -> list[Role]:
    """Group the answers of ACL DRYRUN by role; no answer counts as granted."""
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
        """Rank by the number of possible roles; no project at all comes last."""
        return sum(role.possible for role in self.roles) + 0.5 * bool(self.roles)


def check_access(access: Access) -> Iterator[Finding]:
    """Find what the user's rights do not allow in a project, and what that weakens."""
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
