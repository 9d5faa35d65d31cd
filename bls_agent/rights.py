"""The rights that an agent needs in Redis: the one table, and ACL rules made of it.

One row per right: which command, on which key, in which modes, and what is weaker
where it is missing. The documents show this table, the agent's own messages quote it,
and the tests hold it against a real server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from bls_agent.asset_rights import ASSET_LOOKING
from bls_agent.crawl_rights import CRAWL_LOOKING, CRAWL_REQUEUE
from bls_agent.errors import ConfigurationError
from bls_agent.keys import (
    BROADCAST,
    CONTROL,
    DEAD_LETTERS,
    DELIVERIES,
    INFLIGHT,
    INFLIGHT_LISTS,
    INSTANCES,
    OWNER,
    PROJECT_CONSOLE,
    PROJECT_STATUS,
    SEEN,
    KeyTemplate,
)
from bls_agent.names import check_name, place_beside
from bls_agent.run_rights import RUN_LOOKING
from bls_agent.worker_rights import WORKER_LOOKING

__all__ = [
    "RIGHTS",
    "KeyGroup",
    "Mode",
    "Right",
    "acl_line",
    "acl_rules",
    "console_acl_rules",
    "find_right",
]

Mode: TypeAlias = Literal["blocking", "compat", "reliable"]

_ALL: Final[frozenset[Mode]] = frozenset(get_args(Mode))
_AUTO: Final[frozenset[Mode]] = frozenset({"blocking", "compat"})
_PARKED: Final[frozenset[Mode]] = frozenset({"blocking", "reliable"})
_BLOCKING: Final[frozenset[Mode]] = frozenset({"blocking"})
_COMPAT: Final[frozenset[Mode]] = frozenset({"compat"})
_RELIABLE: Final[frozenset[Mode]] = frozenset({"reliable"})

_UNGUARDED: Final = "the status is written without a guard for a key of another type"
_TWO_STEPS: Final = "a handled command is cut by LREM of its bytes, not by its place"
_NO_STATUS: Final = "the status is not written"
_NO_RECORDS: Final = "no record is written"
_NOT_RELIABLE: Final = "no command is received in mode reliable"
_ALONE: Final = "each replica writes the status as if it were alone"


@dataclass(frozen=True)
class KeyGroup:
    """Keys that one script touches together, so that one selector must open them all.

    Attributes:
        beside: The key of the contract beside which they lie.
        members: They, and that key if it is one of them.
        owners: Whether the owners of in-flight lists are among them, too.
    """

    beside: KeyTemplate
    members: tuple[KeyTemplate, ...]
    owners: bool = False

    @property
    def template(self) -> str:
        """How the group is shown."""
        names = [member.template for member in self.members]
        return " ".join(names + [OWNER.template] * self.owners)

    def match(self, key: str) -> bool:
        """Tell whether a key is one of the group."""
        owned = self.owners and OWNER.match(key)
        return owned or any(member.match(key) for member in self.members)

    def patterns(self, project: str) -> list[str]:
        """Make the glob patterns of a project's keys."""
        place = place_beside(self.beside.locate(project=project))
        found = [
            member.pattern(place=place)
            if member is not self.beside
            else member.pattern(project=project)
            for member in self.members
        ]
        if self.owners:
            found.append(OWNER.locate(place=INFLIGHT.pattern(place=place)))
        return found


_BOOKS: Final = KeyGroup(
    CONTROL,
    (CONTROL, INFLIGHT, INFLIGHT_LISTS, DELIVERIES, SEEN, DEAD_LETTERS),
    owners=True,
)
_ROSTER: Final = KeyGroup(PROJECT_STATUS, (PROJECT_STATUS, INSTANCES))
_INBOXES: Final = KeyGroup(CONTROL, (BROADCAST,))


@dataclass(frozen=True)
class Right:
    """One right.

    Attributes:
        command: As an ACL names it: ``rpush``, ``client|kill``; several with blanks.
        key: On which key or keys, or ``None`` where the command takes none.
        modes: In which ways to receive it is used.
        weaker: What does not hold without it.
        essential: A part of the contract does not work without it at all.
        option: The option that needs it, where the command goes on without.
        extra: Not in :func:`acl_rules`: of use only on old servers, or too mighty.
        replicas: Used only with ``replicas=True``.
    """

    command: str
    key: KeyTemplate | KeyGroup | None
    modes: frozenset[Mode]
    weaker: str
    essential: bool = False
    option: str = ""
    extra: bool = False
    replicas: bool = False

    @property
    def shown(self) -> str:
        """The command as people write it: ``SET … GET``, ``CLIENT KILL``."""
        words = self.command.replace(" ", ", ").replace("|", " ").upper()
        return f"{words} … {self.option}" if self.option else words


# fmt: off
RIGHTS: Final = (
    Right("select", None, _ALL, "only database 0 can be used", essential=True),
    Right("ping", None, _ALL, "its refusal counts as an answer: nothing is weaker"),
    Right("client|setname", None, _ALL, "CLIENT LIST does not tell whose connections they are"),
    Right("client|id", None, _ALL, "as without CLIENT UNBLOCK and CLIENT KILL"),
    Right("client|unblock", None, _PARKED, "an idle agent needs up to 2 s to stop"),
    Right("client|kill", None, _ALL, "what a cut left in doubt is written again and counted as logs_maybe_repeated"),
    Right("client|list", None, _ALL, "a lost connection is killed by id and address, which a proxy may have translated", extra=True),
    Right("set", PROJECT_STATUS, _ALL, _NO_STATUS, essential=True),
    Right("set", PROJECT_STATUS, _ALL, _UNGUARDED, option="GET"),
    Right("type", PROJECT_STATUS, _ALL, _UNGUARDED, extra=True),
    Right("expire", PROJECT_STATUS, _ALL, "the status expires while Redis is out of memory"),
    Right("pttl", PROJECT_STATUS, _ALL, "somebody else who refreshes the status with the same value is not noticed"),
    Right("rpush", PROJECT_CONSOLE, _ALL, _NO_RECORDS, essential=True),
    Right("ltrim", PROJECT_CONSOLE, _ALL, "the console list is not capped"),
    Right("lrange", PROJECT_CONSOLE, _ALL, "what a cut left in doubt is written again without a look"),
    Right("blpop", CONTROL, _BLOCKING, "no command is received in mode blocking", essential=True),
    Right("lpop", CONTROL, _BLOCKING, "no prefetch: commands are taken one by one"),
    Right("lpush", CONTROL, _BLOCKING, "at the stop, what was taken and not started is run, or reported as cancelled"),
    Right("lrange", CONTROL, _BLOCKING, "what was given back at the stop is reported as cancelled if the answer is lost"),
    Right("lrange", CONTROL, _COMPAT, "no command is received in mode compat", essential=True),
    Right("evalsha", CONTROL, _COMPAT, _TWO_STEPS),
    Right("eval", CONTROL, _COMPAT, _TWO_STEPS),
    Right("lindex", CONTROL, _COMPAT, _TWO_STEPS),
    Right("ltrim", CONTROL, _COMPAT, _TWO_STEPS),
    Right("lrem", CONTROL, _COMPAT, "where scripts are refused, too, a command is cut without looking"),
    Right("time", None, _RELIABLE, _NOT_RELIABLE, essential=True),
    Right("blmove", _BOOKS, _RELIABLE, _NOT_RELIABLE, essential=True),
    Right("evalsha eval", _BOOKS, _RELIABLE, _NOT_RELIABLE, essential=True),
    Right("lmove llen lrange lrem lpush rpush rpop ltrim set get del pttl expire pexpire", _BOOKS, _RELIABLE, _NOT_RELIABLE, essential=True),
    Right("sadd srem scard srandmember hget hset hdel hlen zadd zscore zcard zremrangebyscore zremrangebyrank", _BOOKS, _RELIABLE, _NOT_RELIABLE, essential=True),
    Right("time", None, _ALL, _ALONE, replicas=True),
    Right("evalsha eval set type hgetall hset hdel pexpireat", _ROSTER, _ALL, _ALONE, replicas=True),
    Right("rpush ltrim expire lpop", _INBOXES, _ALL, "a broadcast does not reach every replica", replicas=True),
)
# fmt: on


# What a console needs; those that write are for sending commands.
_CONSOLE: Final = (
    (None, "select ping client|setname client|id scan time"),
    (PROJECT_STATUS, "get getrange pttl"),
    (PROJECT_CONSOLE, "lrange llen lindex"),
    (CONTROL, "llen"),
    (INSTANCES, "hgetall"),
)
_SENDING: Final = (
    (PROJECT_CONSOLE, "rpush ltrim", "%W~"),
    (CONTROL, "rpush", "%W~"),
    (CONTROL, "lrange lrem", "%RW~"),
)
_OF_PROJECTS: Final = (PROJECT_STATUS, PROJECT_CONSOLE, CONTROL)
_BESIDE: Final = (*_BOOKS.members[1:], BROADCAST, INSTANCES)


def find_right(request: Sequence[object], *, by_key: bool = True) -> Right | None:
    """Find the row of a request that was refused.

    Args:
        request: Its words, as they are sent.
        by_key: The command as such is allowed, but not on this key or not so.
    """
    words = [str(word) for word in request[:4]] + [""] * 3
    name, key = words[0].lower(), words[1]
    if name == "client":
        name = f"client|{key.lower()}"
    elif name.startswith("eval"):
        key = words[3]  # behind the script and the number of keys
    option = "GET" if by_key and request[-1] == "GET" else ""
    for right in RIGHTS:
        named = name in right.command.split() and right.option == option
        if named and (not right.key or right.key.match(key)):
            return right
    return None


def acl_line(
    project: str,
    mode: Mode | Literal["auto"] = "auto",
    *,
    replicas: bool = False,
    selectors: bool = True,
) -> str:
    """Write the rights of one agent as a line for ``ACL SETUSER`` or ``users.acl``.

    Args:
        project: The project's name; what a pattern would read as a wildcard is escaped.
        mode: How its agent receives commands.
        replicas: Whether several processes share the name.
        selectors: For Redis 7 and newer, and Valkey: each command on its key alone.
            Without, for Redis 6: every command on every key of the project, so that
            the agent could also command itself.

    Raises:
        ConfigurationError: The name cannot be a part of such a line, or no mode is
            called so.
    """
    if any(quote in project for quote in "\"'"):
        raise ConfigurationError(
            "project", project, "an ACL line holds no quotes", "Use acl_rules()."
        )
    return " ".join(acl_rules(project, mode, replicas=replicas, selectors=selectors))


def acl_rules(
    project: str,
    mode: Mode | Literal["auto"] = "auto",
    *,
    replicas: bool = False,
    selectors: bool = True,
) -> list[str]:
    """Give the same as words of their own, for programs; arguments as above.

    Raises:
        ConfigurationError: The name holds a blank, or breaks a rule for names; or no
            mode is called so.
    """
    if mode != "auto" and mode not in _ALL:
        rule = "one of: auto, blocking, compat, reliable"
        raise ConfigurationError("mode", mode, rule)
    if " " in check_name("project", project):
        raise ConfigurationError(
            "project", project, "an ACL pattern holds no blanks", "Use '_' instead."
        )
    modes = _AUTO if mode == "auto" else frozenset({mode})
    rights = [row for row in RIGHTS if row.modes & modes and replicas >= row.replicas]
    keyless = _commands(row for row in rights if row.key is None and not row.extra)
    rules = ["-@all", *keyless]
    keys = dict.fromkeys(row.key for row in rights if row.key)
    if not selectors:
        needed = [row for row in rights if row.key]  # TYPE, too: before 6.2 it is used
        found = [pattern for key in keys for pattern in _patterns(key, project)]
        return [
            *rules,
            *_commands(needed),
            *(f"~{one}" for one in dict.fromkeys(found)),
        ]
    for key in keys:
        commands = _commands(row for row in rights if row.key == key and not row.extra)
        opened = [f"%RW~{pattern}" for pattern in _patterns(key, project)]
        rules.append(f"({' '.join([*commands, *opened])})")
    return rules


def console_acl_rules(
    project: str | None = None,
    *,
    send: bool = True,
    forget: bool = False,
    selectors: bool = True,
) -> list[str]:
    """Give the rights of a console, of one project or of all, as words of their own.

    They are enough for :class:`~bls_agent.Console`, the command line and the console in
    the browser; the doctor, which looks at every key, needs more. Workers, runs,
    assets and crawl queues are seen by whoever may see all projects.

    Args:
        project: The only project that it may see; ``None`` for all.
        send: Whether it may send commands, see those that wait and withdraw them, leave
            records of who sends them, and queue failed requests of crawlers again.
        forget: Whether it may delete all that belongs to a project.
        selectors: As for :func:`acl_line`.

    Raises:
        ConfigurationError: As :func:`acl_rules`.
    """
    if project is not None and " " in check_name("project", project):
        raise ConfigurationError(
            "project", project, "an ACL pattern holds no blanks", "Use '_' instead."
        )
    rows = [(key, commands, "%R~") for key, commands in _CONSOLE]
    rows += _SENDING if send else ()
    if forget:
        rows += [(key, "del", "%W~") for key in (*_OF_PROJECTS, *_BESIDE)]
        rows += [(OWNER, "pttl", "%R~")]
    rules, keys = ["-@all"], dict[str, None]()
    for key, commands, access in rows:
        words = [f"+{command}" for command in commands.split()]
        if key is not None and selectors:
            rules.append(
                f"({' '.join(words)} {access}{_console_pattern(key, project)})"
            )
            continue
        rules += [word for word in words if word not in rules]
        if key is not None:
            keys[f"~{_console_pattern(key, project)}"] = None
    if project is None:
        return _with_others(rules, keys, send=send, selectors=selectors)
    return [*rules, *keys]


def _with_others(
    rules: list[str], keys: dict[str, None], *, send: bool, selectors: bool
) -> list[str]:
    """Add what is nobody's project's: workers, runs, assets, crawl queues.

    Following parks a read.
    """
    rules.insert(rules.index("+client|id") + 1, "+client|unblock")
    looking = [*WORKER_LOOKING, *RUN_LOOKING, *ASSET_LOOKING, CRAWL_LOOKING]
    looking += [CRAWL_REQUEUE] * send
    if selectors:
        return [*rules, *keys, *(right.selector for right in looking)]
    words = (word for right in looking for word in right.words)
    opened = (f"~{pattern}" for right in looking for pattern in right.keys)
    return list(dict.fromkeys([*rules, *words, *keys, *opened]))


def _console_pattern(key: KeyTemplate, project: str | None) -> str:
    if project is None:
        return key.pattern()
    if key in _OF_PROJECTS:
        return key.pattern(project=project)
    if key is INSTANCES:
        return key.pattern(place=place_beside(PROJECT_STATUS.locate(project=project)))
    place = place_beside(CONTROL.locate(project=project))
    if key is OWNER:
        return OWNER.locate(place=INFLIGHT.pattern(place=place))
    return key.pattern(place=place)


def _patterns(key: KeyTemplate | KeyGroup, project: str) -> list[str]:
    if isinstance(key, KeyGroup):
        return key.patterns(project)
    return [key.pattern(project=project)]


def _commands(rights: Iterator[Right] | Sequence[Right]) -> list[str]:
    words = [word for right in rights for word in right.command.split()]
    return list(dict.fromkeys(f"+{word}" for word in words))
