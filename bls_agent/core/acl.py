"""The tables of rights that programs need in Redis, and the ACL rules made from them.

``docs/rights.md`` shows the table of the agent's rights. If Redis refuses a request,
the agent logs the missing right and its effect from this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from bls_agent.core.errors import ConfigurationError
from bls_agent.core.keys import (
    ASSET_REPORT,
    BROADCAST,
    CONSOLE_CHANGES,
    CONTROL,
    CRAWL_LEASES,
    DEAD_LETTERS,
    DELIVERIES,
    INFLIGHT,
    INFLIGHT_LISTS,
    INSTANCES,
    INTAKE,
    KEYS,
    OWNER,
    PROJECT_CONSOLE,
    PROJECT_STATUS,
    RUN_BOOKS,
    RUN_EVENTS,
    SEEN,
    Contract,
    KeyTemplate,
    check_name,
    decode_key,
    escape_glob,
    place_beside,
    quote_word,
)

__all__ = [
    "ASSET_RIGHTS",
    "CONSOLE_RIGHTS",
    "CRAWL_LOOKING",
    "CRAWL_REQUEUE",
    "RIGHTS",
    "RUN_RIGHTS",
    "KeyAccess",
    "Mode",
    "Right",
    "acl_line",
    "acl_rules",
    "asset_acl_rules",
    "console_acl_rules",
    "crawl_acl_rules",
    "crawl_rights",
    "find_right",
    "run_acl_rules",
    "worker_acl_rules",
]

Mode: TypeAlias = Literal["blocking", "compat", "reliable"]

READ: Final = "%R~"
WRITE: Final = "%W~"
READ_AND_WRITE: Final = "%RW~"

_ALL: Final[frozenset[Mode]] = frozenset(get_args(Mode))
_AUTO: Final[frozenset[Mode]] = frozenset({"blocking", "compat"})
_PARKED: Final[frozenset[Mode]] = frozenset({"blocking", "reliable"})
_BLOCKING: Final[frozenset[Mode]] = frozenset({"blocking"})
_COMPAT: Final[frozenset[Mode]] = frozenset({"compat"})
_RELIABLE: Final[frozenset[Mode]] = frozenset({"reliable"})

_UNGUARDED: Final = (
    "the status is written without a check that its key holds no other type"
)
_TWO_STEPS: Final = (
    "a finished command is removed by its bytes (LREM), not by its position"
)
_NO_STATUS: Final = "the status is not written"
_NO_RECORDS: Final = "no record is written"
_NOT_RELIABLE: Final = "no command is received in mode reliable"
_ALONE: Final = "each replica writes the status as if it were alone"
_UNSEEN: Final = "replicas are not listed"
_UNSETTLED: Final = "dead letters are not shown, queued again or discarded"
_NOT_PAUSED: Final = "pause and drain are rejected"
_NOT_SHOWN: Final = "a paused agent is not shown as paused"


class KeyAccess(NamedTuple):
    """One selector of an ACL: commands, and the keys on which they are allowed."""

    keys: tuple[str, ...]  # glob patterns; empty for commands without keys
    commands: str  # names as in an ACL, separated by spaces
    access: str = READ  # ``%R~``, ``%W~`` or ``%RW~``

    @property
    def writes(self) -> bool:
        """Whether only a program that writes needs these commands."""
        return self.access != READ

    @property
    def words(self) -> list[str]:
        """The ACL words that allow the commands, such as ``+get``."""
        return [f"+{command}" for command in self.commands.split()]

    @property
    def selector(self) -> str:
        """The selector in an ACL that allows the commands on these keys only."""
        opened = (quote_word(f"{self.access}{pattern}") for pattern in self.keys)
        return f"({' '.join([*dict.fromkeys(self.words), *opened])})"


def _rules_of(
    rights: Iterable[KeyAccess], *, write: bool = True, selectors: bool
) -> list[str]:
    """Return ACL words; without selectors, any row's command may use any row's keys."""
    needed = [right for right in rights if write or not right.writes]
    keyed = [one for one in needed if one.keys]
    rules = ["-@all", *(word for one in needed if not one.keys for word in one.words)]
    if selectors:
        return [*dict.fromkeys(rules), *(one.selector for one in keyed)]
    rules += (word for one in keyed for word in one.words)
    rules += (f"~{pattern}" for one in keyed for pattern in one.keys)
    return list(dict.fromkeys(rules))


# Keys that one script uses together. One selector must allow all of them, because Redis
# compares a command with each selector alone.
_STATUS: Final = (PROJECT_STATUS,)
_LOG: Final = (PROJECT_CONSOLE,)
_COMMANDS: Final = (CONTROL,)
_RELIABLE_KEYS: Final = (
    CONTROL, INFLIGHT, INFLIGHT_LISTS, DELIVERIES, SEEN, DEAD_LETTERS, OWNER,
)  # fmt: skip
_REPLICA_KEYS: Final = (PROJECT_STATUS, INSTANCES)
_INBOXES: Final = (BROADCAST,)


@dataclass(frozen=True)
class Right:
    """One row of the tables: a command, its keys, and what fails without it."""

    command: str  # name as in an ACL: ``rpush``, ``client|kill``; or several names
    keys: tuple[KeyTemplate, ...]  # empty if the command takes no key
    modes: frozenset[Mode]  # modes of receiving in which the command is used
    weaker: str  # what no longer works without this right
    essential: bool = False  # whether a part of the protocol fails without this right
    option: str = ""  # an option of the command; the agent omits it without this right
    extra: bool = False  # not in acl_rules(), because too powerful or for old servers
    replicas: bool = False  # whether the agent needs it only with ``replicas=True``
    access: str = READ_AND_WRITE  # READ, WRITE or READ_AND_WRITE

    @property
    def shown(self) -> str:
        """The command as messages print it: ``SET … GET``, ``CLIENT KILL``."""
        words = self.command.replace(" ", ", ").replace("|", " ").upper()
        return f"{words} … {self.option}" if self.option else words

    def patterns(self, project: str | None) -> tuple[str, ...]:
        """Return the glob patterns of the keys; ``None`` means all projects."""
        return tuple(_pattern(key, project) for key in self.keys)


# fmt: off
RIGHTS: Final = (
    Right("select", (), _ALL, "only database 0 can be used", essential=True),
    Right("ping", (), _ALL, "nothing works less well, because an error reply counts as an answer"),
    Right("client|setname", (), _ALL, "CLIENT LIST does not show the names of the agent's connections"),
    Right("client|id", (), _ALL, "the same as without CLIENT UNBLOCK and CLIENT KILL"),
    Right("client|unblock", (), _PARKED, "an idle agent needs up to 2 s to stop"),
    Right("client|kill", (), _ALL, "after a lost connection, records may be written twice, and are counted as logs_maybe_repeated"),
    Right("client|list", (), _ALL, "a lost connection is killed by its id and address, and a proxy may have changed the address", extra=True),
    Right("set", _STATUS, _ALL, _NO_STATUS, essential=True),
    Right("set", _STATUS, _ALL, _UNGUARDED, option="GET"),
    Right("type", _STATUS, _ALL, _UNGUARDED, extra=True),
    Right("expire", _STATUS, _ALL, "the status expires while Redis is out of memory"),
    Right("rpush", _LOG, _ALL, _NO_RECORDS, essential=True),
    Right("ltrim", _LOG, _ALL, "the console list is not shortened to its limit"),
    Right("lrange", _LOG, _ALL, "after a lost connection, records are written again without a check"),
    Right("blpop", _COMMANDS, _BLOCKING, "no command is received in mode blocking", essential=True),
    Right("lpop", _COMMANDS, _BLOCKING, "prefetch has no effect: commands are taken one at a time"),
    Right("lpush", _COMMANDS, _BLOCKING, "when the agent stops or pauses, commands that were taken and not started are run, or reported as cancelled"),
    Right("lrange", _COMMANDS, _COMPAT, "no command is received in mode compat", essential=True),
    Right("evalsha", _COMMANDS, _COMPAT, _TWO_STEPS),
    Right("eval", _COMMANDS, _COMPAT, _TWO_STEPS),
    Right("lindex", _COMMANDS, _COMPAT, _TWO_STEPS),
    Right("ltrim", _COMMANDS, _COMPAT, _TWO_STEPS),
    Right("lrem", _COMMANDS, _COMPAT, "pause and drain are rejected; if scripts are refused, too, a finished command is removed in two steps (LRANGE, then LTRIM)"),
    Right("time", (), _AUTO, _NOT_SHOWN),
    Right("time", (), _RELIABLE, _NOT_RELIABLE, essential=True),
    Right("blmove", _RELIABLE_KEYS, _RELIABLE, _NOT_RELIABLE, essential=True),
    Right("evalsha eval", _RELIABLE_KEYS, _RELIABLE, _NOT_RELIABLE, essential=True),
    Right("lmove llen lrange lrem lpush rpush rpop ltrim set get del pttl expire pexpire", _RELIABLE_KEYS, _RELIABLE, _NOT_RELIABLE, essential=True),
    Right("hrandfield hget hset hsetnx hdel hlen zadd zscore zcard zremrangebyscore zremrangebyrank", _RELIABLE_KEYS, _RELIABLE, _NOT_RELIABLE, essential=True),
    Right("lrange lrem", _COMMANDS, _BLOCKING, _NOT_PAUSED),
    Right("hset hdel pexpire", (INTAKE,), _ALL, _NOT_SHOWN),
    Right("time", (), _ALL, _ALONE, replicas=True),
    Right("evalsha eval set type hgetall hset hdel pexpireat", _REPLICA_KEYS, _ALL, _ALONE, replicas=True),
    Right("rpush ltrim expire lpop lrange lrem", _INBOXES, _ALL, "a broadcast does not reach every replica", replicas=True),
)
# fmt: on

# The rights of a console. A console that only reads needs only the rows with READ.
# fmt: off
CONSOLE_RIGHTS: Final = tuple(
    Right(command, keys, _ALL, weaker, essential=essential, access=access)
    for command, keys, access, weaker, essential in (
        ("select", (), READ, "only database 0 can be used", True),
        ("ping client|setname client|id", (), READ, "nothing is weaker", False),
        ("scan", (), READ, "projects are not found", True),
        ("time", (), READ, _UNSEEN, False),
        ("get getrange pttl", _STATUS, READ, "statuses are not shown", True),
        ("lrange llen lindex", _LOG, READ, "records are not shown", True),
        ("llen", _COMMANDS, READ, "waiting commands are not counted", True),
        ("llen", (DEAD_LETTERS,), READ, "dead letters are not counted", False),
        ("hgetall", (INSTANCES,), READ, _UNSEEN, False),
        ("hgetall", (INTAKE,), READ, _NOT_SHOWN, False),
        ("rpush ltrim", _LOG, WRITE, "who sent a command is not recorded", False),
        ("rpush", _COMMANDS, WRITE, "no command is sent", False),
        ("lrange lrem", _COMMANDS, READ_AND_WRITE, "waiting commands are not shown or withdrawn", False),
        ("lrange hkeys pttl", (INFLIGHT, INFLIGHT_LISTS, OWNER), READ_AND_WRITE, "commands in hand are not shown", False),
        ("lrange lrem", (DEAD_LETTERS,), READ_AND_WRITE, _UNSETTLED, False),
        ("hlen hdel", (DELIVERIES,), READ_AND_WRITE, _UNSETTLED, False),
        ("evalsha eval", (CONTROL, DEAD_LETTERS, DELIVERIES), READ_AND_WRITE, _UNSETTLED, False),
    )
)
# fmt: on
_FORGOTTEN: Final = (
    *(PROJECT_STATUS, PROJECT_CONSOLE, CONTROL, INFLIGHT, INFLIGHT_LISTS, DELIVERIES),
    *(SEEN, DEAD_LETTERS, BROADCAST, INTAKE, INSTANCES),
)


def _keys_of(*rows: str, leased: bool = False, name: str = "") -> tuple[str, ...]:
    """Return the glob patterns of rows of ``KEYS``; if ``leased``, also of owner keys.

    If ``name`` is set, the patterns match only keys whose last field is ``name``.
    """
    fields = [KEYS[row].fields[-1:] if name else () for row in rows]
    fixed = [dict.fromkeys(names, name) for names in fields]
    found = [KEYS[row].pattern(**one) for row, one in zip(rows, fixed, strict=True)]
    # place_beside() puts a key in braces, except a key that has a hash tag already.
    if leased:
        tagged = [OWNER.locate(place=f"{{{one}}}") for one in found]
        found += [*tagged, *(OWNER.locate(place=one) for one in found)]
    return tuple(found)


_GENERIC: Final = "generic_heartbeat"  # its pattern matches most other heartbeats, too
_COVERED: Final = KEYS[_GENERIC].template.partition("{")[0]
_KINDS: Final = tuple(
    name
    for name, row in KEYS.items()
    if row.contract is Contract.WORKERS and name.endswith("_heartbeat")
    if name == _GENERIC or not row.template.startswith(_COVERED)
)
_BEATEN: Final = tuple(  # kinds of keys that the class Heartbeat writes
    name for name in _KINDS if KEYS[name].fields[-1] == "worker_id"
)
_TASKS: Final = _keys_of("task_status", "backtest_task_progress")
_DAYS: Final = _keys_of("sync_progress")
_CACHE: Final = _keys_of("func_cache", leased=True)

# The comment after a row names the classes or the operations that need the row.
# fmt: off
_WORKER_LOOKING: Final = (
    KeyAccess((*_keys_of(*_KINDS), *_TASKS), "getrange pttl"),  # WorkerRegistry
    KeyAccess(_keys_of("owner"), "getrange"),  # WorkerRegistry reads the TTLs of leases
)
_BEATING: Final = "evalsha eval type get set del pttl pexpire"  # Heartbeat
_WORKER_RIGHTS: Final = (
    KeyAccess((), "select ping client|setname client|id scan"),
    *_WORKER_LOOKING,
    KeyAccess(_TASKS, "get"),  # TaskStatus, BacktestProgress
    KeyAccess(_DAYS, "scard smembers sscan sismember"),  # SyncProgress
    KeyAccess(_keys_of(*_KINDS, leased=True), _BEATING, READ_AND_WRITE),
    KeyAccess(_TASKS, "evalsha eval get set del exists pttl strlen", READ_AND_WRITE),  # TaskStatus, BacktestProgress
    KeyAccess(_DAYS, "evalsha eval sadd expire srem unlink", READ_AND_WRITE),  # SyncProgress
    KeyAccess(_CACHE, "evalsha eval get getrange set del unlink pttl pexpire", READ_AND_WRITE),  # FunctionCache
)
# fmt: on

_EVENTS: Final = RUN_EVENTS.pattern()
_RUN_PLACE: Final = place_beside(_EVENTS)
_RUN_BOOKS: Final = RUN_BOOKS.locate(place=_RUN_PLACE)
_RUN_OWNER: Final = OWNER.locate(place=_RUN_PLACE)

# fmt: off
RUN_RIGHTS: Final = (
    KeyAccess((), "select ping client|setname client|id"),
    KeyAccess((), "client|unblock scan"),  # following, listing
    KeyAccess((_EVENTS,), "xread xrange xrevrange xlen exists pttl xinfo|stream"),  # reading, following, listing
    KeyAccess((_RUN_BOOKS,), "hget hmget"),  # following, listing
    KeyAccess((_RUN_OWNER,), "pttl"),  # following, listing
    KeyAccess((), "time", READ_AND_WRITE),  # writing
    KeyAccess((_EVENTS, _RUN_BOOKS, _RUN_OWNER), "evalsha eval xadd xlen xrange xrevrange hmget hset hdel get set del pttl pexpire expire", READ_AND_WRITE),  # writing
    KeyAccess((_EVENTS, _RUN_BOOKS), "unlink", READ_AND_WRITE),  # deleting
)
# fmt: on

_METADATA: Final = KEYS["asset_metadata"].pattern()
_CATEGORY: Final = KEYS["asset_category"].pattern()
_INDEX: Final = KEYS["asset_index"].build()
_STATE: Final = KEYS["asset_sync_state"].build()
_CHANGED: Final = KEYS["asset_sync_changed"].build()
_REPORT: Final = ASSET_REPORT.locate(place=place_beside(_STATE))
_SYNC_OWNER: Final = OWNER.locate(place=place_beside(_STATE))
_WRITTEN: Final = (_METADATA, _INDEX, _CHANGED, _SYNC_OWNER, _CATEGORY)

# fmt: off
ASSET_RIGHTS: Final = (
    KeyAccess((), "select ping client|setname client|id"),
    KeyAccess((_METADATA,), "hgetall hmget"),  # get, list
    KeyAccess((_INDEX, _STATE), "hgetall"),  # list, search, sync_state
    KeyAccess((_CATEGORY,), "smembers"),  # list
    KeyAccess((_SYNC_OWNER,), "exists"),  # sync_state
    KeyAccess((_REPORT,), "get"),  # sync_state
    KeyAccess((_CHANGED,), "lrange"),  # changes, watch
    KeyAccess((), "time", READ_AND_WRITE),  # AssetSync
    KeyAccess((_INDEX,), "hgetall", READ_AND_WRITE),  # AssetSync
    KeyAccess((_SYNC_OWNER,), "set pttl exists pexpire", READ_AND_WRITE),  # AssetSync
    KeyAccess((_STATE,), "hgetall hset", READ_AND_WRITE),  # AssetSync
    KeyAccess((_REPORT,), "get set", READ_AND_WRITE),  # AssetSync
    KeyAccess(_WRITTEN, "evalsha eval get hlen llen scard hget hmget hset hdel del sadd srem rpush ltrim", READ_AND_WRITE),  # save, delete, AssetSync
)
# fmt: on

_REQUESTS: Final = KEYS["crawl_requests"]
_LEASES: Final = CRAWL_LEASES.template.partition("{")[0]


def _crawl_patterns(project: str | None, spider: str | None) -> tuple[str, ...]:
    """Return the glob patterns of crawl keys, with and without a hash tag."""
    begin, parts = _REQUESTS.template.partition("{")[0], [project, spider]
    names = [name for name in parts if name is not None]
    if names:
        _REQUESTS.build(project=project, spider=spider)
    for name in names:
        begin += f"{escape_glob(_refuse_blanks(name))}:"
    return f"{begin}*", f"{_LEASES}{{{begin}*", f"{_LEASES}{begin}*"


def _refuse_blanks(name: str, what: str = "project") -> str:
    if " " in name:
        rule = "an ACL pattern holds no blanks"
        raise ConfigurationError(what, name, rule, "Use '_' instead.")
    return name


# An operator needs the first row to see crawl queues, the second to requeue requests.
CRAWL_LOOKING: Final = KeyAccess(
    _crawl_patterns(None, None), "zcard hlen llen hgetall lrange"
)
CRAWL_REQUEUE: Final = KeyAccess(
    _crawl_patterns(None, None),
    "evalsha eval zcard hlen hget llen lrange scard lrem zadd hset hincrby rpush type",
    READ_AND_WRITE,
)
# The console in the browser needs this right if it is started with --keep-changes.
CHANGES_KEEPING: Final = KeyAccess(
    (CONSOLE_CHANGES.build(),), "xrevrange xadd", READ_AND_WRITE
)


def crawl_rights(
    project: str | None = None, spider: str | None = None
) -> tuple[KeyAccess, ...]:
    """Return the rows for the rules that :func:`crawl_acl_rules` returns."""
    keys = _crawl_patterns(project, spider)
    reading = "zcard hlen llen scard hgetall lrange sismember"
    writing = (
        "evalsha eval get zrange zrangebyscore zcard zcount hget hgetall hlen llen "
        "lrange scard pttl zadd zrem hset hdel hincrby rpush ltrim lrem blpop sadd incr "
        "del pexpire type unlink"
    )
    return (
        KeyAccess((), "select ping client|setname client|id time scan"),
        KeyAccess(keys, reading),  # the methods size, stats, failed and contains
        KeyAccess(keys, writing, READ_AND_WRITE),  # RequestQueue, SeenFilter, cleanup
    )


def find_right(request: Sequence[object], *, by_key: bool = True) -> Right | None:
    """Return the right that a refused request lacks; ``None`` if it is in no row.

    ``by_key`` means that the command itself is allowed, but not on this key.
    """
    words = [decode_key(w) if isinstance(w, bytes) else str(w) for w in request]
    name, key = words[0].lower(), words[1] if len(words) > 1 else ""
    if name == "client":
        name = f"client|{key.lower()}"
    elif name.startswith("eval"):
        key = words[3] if len(words) > 3 else ""  # noqa: PLR2004 - EVAL, script, count
    option = "GET" if by_key and request[-1] == "GET" else ""
    for right in RIGHTS:
        named = name in right.command.split() and right.option == option
        if named and (not right.keys or any(one.match(key) for one in right.keys)):
            return right
    return None


def acl_line(
    project: str,
    mode: Mode | Literal["auto"] = "auto",
    *,
    replicas: bool = False,
    selectors: bool = True,
) -> str:
    """Return the rights of one agent as a line for ``ACL SETUSER`` or ``users.acl``.

    Args:
        project: The project's name. The function escapes wildcards in the name.
        mode: The mode in which the agent receives commands.
        replicas: Whether several processes run as this project.
        selectors: Whether each command is allowed only on its own keys, which needs
            Redis 7 or newer, or Valkey. Without selectors, for Redis 6, every command
            is allowed on every key of the project.

    Raises:
        ConfigurationError: The name breaks a rule for names, or holds a blank or a
            quote. Or the mode does not exist.
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
    """Return the rules of :func:`acl_line`, with the same arguments, as a list.

    Raises:
        ConfigurationError: The name holds a blank or breaks a rule for names, or the
            mode does not exist.
    """
    if mode != "auto" and mode not in _ALL:
        rule = "one of: auto, blocking, compat, reliable"
        raise ConfigurationError("mode", mode, rule)
    _refuse_blanks(check_name("project", project))
    modes = _AUTO if mode == "auto" else frozenset({mode})
    by_keys: dict[tuple[str, ...], list[str]] = {}
    for row in RIGHTS:
        # Rules without selectors keep TYPE, because servers before Redis 6.2 need it.
        left_out = row.extra and (selectors or not row.keys)
        if row.modes & modes and replicas >= row.replicas and not left_out:
            by_keys.setdefault(row.patterns(project), []).append(row.command)
    needed = [
        KeyAccess(patterns, " ".join(commands), READ_AND_WRITE)
        for patterns, commands in by_keys.items()
    ]
    return _rules_of(needed, selectors=selectors)


def console_acl_rules(
    project: str | None = None,
    *,
    send: bool = True,
    forget: bool = False,
    selectors: bool = True,
) -> list[str]:
    """Return the ACL rules of a console, for one project or for all projects.

    The rules are enough for every console. The doctor needs more, because it reads all
    keys. Only a console of all projects shows workers, runs, assets and crawl queues.

    Args:
        project: The only project that the console may read; ``None`` for all projects.
        send: Whether the console may send commands and record who sent them. Such a
            console also shows and withdraws waiting commands, shows running commands,
            settles dead letters, and queues failed requests of crawlers again.
        forget: Whether the console may delete all keys of a project.
        selectors: As in :func:`acl_line`.

    Raises:
        ConfigurationError: The name holds a blank or breaks a rule for names.
    """
    if project is not None:
        _refuse_blanks(check_name("project", project))
    needed = [
        KeyAccess(row.patterns(project), row.command, row.access)
        for row in CONSOLE_RIGHTS
        if send or row.access == READ
    ]
    if forget:
        needed += [
            KeyAccess((_pattern(key, project),), "del", WRITE) for key in _FORGOTTEN
        ]
        needed.append(KeyAccess((_pattern(OWNER, project),), "pttl"))
    if project is None:
        # CLIENT UNBLOCK ends the blocking read of a console that follows a run.
        needed.insert(2, KeyAccess((), "client|unblock"))
        needed += _WORKER_LOOKING
        shared = (*RUN_RIGHTS, *ASSET_RIGHTS)
        needed += (one for one in shared if one.keys and not one.writes)
        operating = [CRAWL_REQUEUE, CHANGES_KEEPING] if send else []
        needed += [CRAWL_LOOKING, *operating]
    return _rules_of(needed, selectors=selectors)


def worker_acl_rules(
    worker: str | None = None, *, write: bool = True, selectors: bool = True
) -> list[str]:
    """Return the ACL rules of a worker, or of a program that only reads workers' keys.

    The rules are enough for all of :mod:`bls_agent.workers`. Each worker may write all
    tasks, progress and function results, because all workers share these keys.

    Args:
        worker: The only id for which a heartbeat may be written; ``None`` for any id.
            The rules for ``w1`` also allow every id that ends in ``:w1``.
        write: Whether the program is a worker that writes, or only reads.
        selectors: As in :func:`acl_line`. ``worker`` needs selectors, because without
            selectors a user may write each key that the user may read.

    Raises:
        ConfigurationError: The id breaks a rule for names or holds a blank, or
            ``selectors`` is false although there is an id.
    """
    rights: Sequence[KeyAccess] = _WORKER_RIGHTS
    if worker is not None:
        _refuse_blanks(check_name("worker", worker), "worker")
        if not selectors:
            rule = "without selectors it may write every heartbeat that it may see"
            raise ConfigurationError("worker", worker, rule, "Leave it out.")
        keys = _keys_of(*_BEATEN, leased=True, name=worker)
        own = KeyAccess(keys, _BEATING, READ_AND_WRITE)
        rights = [own if one.commands == _BEATING else one for one in rights]
    return _rules_of(rights, write=write, selectors=selectors)


def run_acl_rules(*, write: bool = True, selectors: bool = True) -> list[str]:
    """Return the ACL rules of a program that writes runs or only follows them.

    The rules are enough for all of :mod:`bls_agent.runs`, for every run.

    Args:
        write: Whether the program may write, or only read and follow.
        selectors: As in :func:`acl_line`.
    """
    return _rules_of(RUN_RIGHTS, write=write, selectors=selectors)


def asset_acl_rules(*, write: bool = True, selectors: bool = True) -> list[str]:
    """Return the ACL rules of a program that synchronises or only reads assets.

    The rules are enough for all of :mod:`bls_agent.assets`, for every asset.

    Args:
        write: Whether the program may synchronise, save and delete, or only read.
        selectors: As in :func:`acl_line`.
    """
    return _rules_of(ASSET_RIGHTS, write=write, selectors=selectors)


def crawl_acl_rules(
    project: str | None = None,
    spider: str | None = None,
    *,
    write: bool = True,
    selectors: bool = True,
) -> list[str]:
    """Return the ACL rules of a crawler, or of a program that only reads crawl keys.

    The rules are enough for all of :mod:`bls_agent.crawl` except Bloom filters. For
    Bloom filters, add ``+bf.add +bf.exists +bf.card``. A server without a module for
    Bloom filters refuses these three words.

    Args:
        project: The only project that is allowed; ``None`` for all projects.
        spider: The only allowed spider of the project; ``None`` for all its spiders.
        write: Whether the program may queue, take, filter and clean up, or only read.
        selectors: As in :func:`acl_line`.

    Raises:
        ConfigurationError: A name breaks a rule, or holds a blank.
    """
    rights = crawl_rights(project, spider)
    return _rules_of(rights, write=write, selectors=selectors)


def _pattern(key: KeyTemplate, project: str | None) -> str:
    if project is None:
        return key.pattern()
    if "project" in key.fields:
        return key.pattern(project=project)
    beside = PROJECT_STATUS if key is INSTANCES else CONTROL
    place = place_beside(beside.locate(project=project))
    if key is OWNER:
        return OWNER.locate(place=INFLIGHT.pattern(place=place))
    return key.pattern(place=place)
