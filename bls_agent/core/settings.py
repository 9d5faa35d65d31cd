"""Every setting of an agent: its default, unit, range and environment variable.

A keyword argument of :class:`~bls_agent.ProjectAgent` overrides the environment, and
the environment overrides the default.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeAlias, TypedDict, cast

from bls_agent.core.errors import ConfigurationError, ask_whether
from bls_agent.core.keys import check_name
from bls_agent.core.redaction import squeeze

Mode: TypeAlias = Literal["auto", "blocking", "compat", "reliable"]
OnRedelivery: TypeAlias = Literal["run", "skip"]

KIB: Final = 1024
MIB: Final = 1024 * KIB


@dataclass(frozen=True, eq=False)
class Rule:
    """The allowed values of one setting, and its row in ``docs/configuration.md``."""

    kind: type
    meaning: str
    unit: str = ""
    minimum: float = -math.inf
    maximum: float = math.inf
    choices: tuple[str, ...] = ()
    spellings: Mapping[str, str] = field(default_factory=dict[str, str])
    optional: bool = False

    @property
    def form(self) -> str:
        """The allowed values in words, for the error about another value."""
        words = f"one of: {', '.join(self.choices)}" if self.choices else ""
        unit = f" of {self.unit}" if self.unit else ""
        return (words or _FORMS[self.kind] + unit) + ", or none" * self.optional

    def check(self, name: str, value: object) -> object:
        """Return the value, converted to ``kind``, or raise ConfigurationError."""
        if value is None and self.optional:
            return None
        if self.kind is tuple:
            return _check_names(name, value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if self.kind is float and is_number:
            # The value is limited first, because float() raises for a huge integer.
            value = float(max(min(cast("float", value), _HUGE), -_HUGE))
        elif self.kind is str and isinstance(value, str):
            # Not str(value), which is "Kind.WARN" for a member of an Enum.
            value = str.__str__(value)
            if self.choices:
                value = self.spellings.get(value.lower(), value.lower())
        if type(value) is not self.kind or (self.choices and value not in self.choices):
            raise ConfigurationError(name, value, self.form)
        if is_number and not self.minimum <= cast("float", value) <= self.maximum:
            unit = f" {self.unit}" if self.unit else ""
            limits = f"between {self.minimum:g} and {self.maximum:g}{unit}"
            raise ConfigurationError(name, value, limits)
        return value

    def read(self, name: str, text: str) -> object:
        """Return the value that the text of an environment variable means."""
        if self.optional and text.lower() == "none":
            return None
        try:
            return self.check(name, _READERS[self.kind](text))
        except ConfigurationError:
            raise
        except (KeyError, ValueError):
            raise ConfigurationError(name, text, self.form) from None


_FORMS: Final[dict[type, str]] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "names, with commas between them",
}
_BOOLEANS: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_READERS: Final[dict[type, Callable[[str], object]]] = {
    str: str,
    int: int,
    float: float,
    bool: lambda text: _BOOLEANS[text.lower()],
    tuple: str,
}


def _check_names(name: str, value: object) -> tuple[str, ...]:
    """Return names as a tuple; ``value`` is a sequence, or a text with commas."""
    given: list[object] = []
    if isinstance(value, str):
        given += [part for part in value.split(",") if part.strip()]
    elif isinstance(value, Sequence | AbstractSet) and not isinstance(
        value, bytes | bytearray
    ):
        given += cast("Iterable[object]", value)
    else:
        rule = "names, as a sequence of texts or with commas between them"
        raise ConfigurationError(name, value, rule)
    names: list[str] = []
    for part in given:
        if not isinstance(part, str) or not squeeze(part):
            rule = "each name is a text with a letter or digit in it"
            raise ConfigurationError(name, part, rule)
        names.append(str.strip(part))  # also of a member of an Enum
    return tuple(names)


def _setting(default: Any, meaning: str, kind: type = float, **limits: Any) -> Any:
    secret = meaning == _WHERE  # a URL may hold a password
    rule = Rule(kind, meaning, **limits)
    return field(default=default, repr=not secret, metadata={"rule": rule})


_HUGE: Final = 10**300
logger: logging.Logger = logging.getLogger(__name__)

_WHERE: Final = "where Redis is"
_SECONDS: Final[dict[str, Any]] = {"unit": "seconds", "maximum": 86_400.0}
_MODES: Final = ("auto", "blocking", "compat", "reliable")
_REDELIVERIES: Final = ("run", "skip")
_LEVELS: Final = ("debug", "info", "warn", "error")
_SPELLINGS: Final = {"warning": "warn", "critical": "error", "fatal": "error"}
# The commands that every agent answers (see ``project/builtins.py``). A command of
# ``PAUSING`` goes to every replica, or to the one replica that its arguments name.
PAUSING: Final = ("pause", "resume", "drain")
BUILTINS: Final = ("ping", "help", "stats", "set_log_level", *PAUSING)
_warned: set[str] = set()  # variables about which this process has logged a warning
# Variables that are no settings. Other modules of the package, or its tests, read them.
_NO_SETTINGS: Final = (
    "BLS_CHROMIUM",
    "BLS_GITHUB_TOKEN",
    "BLS_LANG",
    "BLS_SERVER_BINARY",
    "BLS_WEBHOOK_SECRET",
)


class Options(TypedDict, total=False):
    """The fields of :class:`Settings`, as optional keywords of an agent."""

    mode: Mode
    instance: str | None
    concurrency: int
    prefetch: int
    command_timeout: float | None
    command_max_age: float | None
    command_size_limit: int
    status_interval: float
    status_ttl: int
    stall_after: float | None
    replicas: bool
    log_level: str
    log_list_limit: int
    log_buffer: int
    log_buffer_bytes: int
    shutdown_timeout: float
    error_window: float | None
    reconnect_max: float
    redis_timeout: float
    record_ids: bool
    builtins: bool
    banner: bool
    redact_keys: Sequence[str]
    on_redelivery: OnRedelivery
    dedup_window: float
    lease_ttl: float


# fmt: off
@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of an agent, with checked values.

    Raises:
        ConfigurationError: A value is out of its range, or ``status_interval`` is
            longer than half of ``status_ttl``.
    """

    redis_url: str = _setting("redis://127.0.0.1:6379/0", _WHERE, str)
    mode: Mode = _setting("auto", "how commands are received", str, choices=_MODES)
    instance: str | None = _setting(None, "name of this process; generated if absent", str, optional=True)
    concurrency: int = _setting(1, "commands that run at the same time; 1 keeps their order", int, unit="commands", minimum=1, maximum=10_000)
    prefetch: int = _setting(1, "commands taken at once if a handler is free", int, unit="commands", minimum=1, maximum=1_000)
    command_timeout: float | None = _setting(30.0, "longest time that a handler may run; none for no limit", minimum=0.001, optional=True, **_SECONDS)
    command_max_age: float | None = _setting(None, "greatest age of a command that runs, by its timestamp and the clock of this machine; none for no limit", minimum=0.1, maximum=31_536_000.0, unit="seconds", optional=True)
    command_size_limit: int = _setting(MIB, "size of the longest command that the agent reads", int, unit="bytes", minimum=256, maximum=512 * MIB)
    status_interval: float = _setting(10.0, "time between two refreshes of the status", minimum=0.05, **_SECONDS)
    status_ttl: int = _setting(60, "time after which the status expires if it is not refreshed", int, unit="seconds", minimum=1, maximum=86_400)
    stall_after: float | None = _setting(5.0, "time after which a blocked event loop sets the status FAULT; none for never", minimum=0.1, optional=True, **_SECONDS)
    replicas: bool = _setting(False, "whether several processes share this project's name", bool)  # noqa: FBT003 - the default value
    log_level: str = _setting("debug", "lowest level of the records that are sent to Redis", str, choices=_LEVELS, spellings=_SPELLINGS)
    log_list_limit: int = _setting(10_000, "records kept in the console list", int, unit="records", minimum=1, maximum=10_000_000)
    log_buffer: int = _setting(10_000, "most records that wait in this process", int, unit="records", minimum=1, maximum=10_000_000)
    log_buffer_bytes: int = _setting(8 * MIB, "most bytes that wait in this process", int, unit="bytes", minimum=128 * KIB, maximum=4_096 * MIB)
    shutdown_timeout: float = _setting(10.0, "time that running handlers get when the agent stops", minimum=0.0, **_SECONDS)
    error_window: float | None = _setting(None, "time for which an error record sets the status ERROR; none for never", minimum=0.05, optional=True, **_SECONDS)
    reconnect_max: float = _setting(2.0, "longest wait before the next attempt to reach Redis", minimum=0.05, **_SECONDS)
    redis_timeout: float = _setting(5.0, "deadline of one request to Redis", minimum=0.05, **_SECONDS)
    record_ids: bool = _setting(True, "whether every record gets a record id in metadata.agent", bool)  # noqa: FBT003 - the default value
    builtins: bool = _setting(True, f"answer {', '.join(BUILTINS[:-1])} and {BUILTINS[-1]}", bool)  # noqa: FBT003 - the default value
    banner: bool = _setting(True, "whether run() writes the address of Redis and its progress to standard error if logging is not configured", bool)  # noqa: FBT003 - the default value
    redact_keys: Sequence[str] = _setting((), "additional names of keys whose values never leave the process; a name with - in front is an exception", tuple)
    on_redelivery: OnRedelivery = _setting("run", "what to do with a command that was delivered before", str, choices=_REDELIVERIES)
    dedup_window: float = _setting(600.0, "time for which a command with the same id does not run again; 0 turns this off", minimum=0.0, **_SECONDS)
    lease_ttl: float = _setting(15.0, "time after which other processes take over the commands of a process that does not renew its lease", minimum=0.5, maximum=3_600.0, unit="seconds")
# fmt: on

    def __post_init__(self) -> None:
        for name, rule in rules().items():
            checked = rule.check(name, getattr(self, name))
            object.__setattr__(self, name, checked)
        if self.instance is not None:
            check_name("instance", self.instance)
        _check_together(self.status_interval, self.status_ttl)

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **options: Any) -> Settings:
        """Combine the given keywords with the ``BLS_*`` variables of a mapping.

        A keyword overrides its variable. An empty variable counts as absent.

        Raises:
            ConfigurationError: A variable or a keyword has a wrong value.
        """
        found: dict[str, Any] = {}
        for name, rule in rules().items():
            text = environ.get(f"BLS_{name.upper()}", "").strip()
            if text and name not in options:
                found[name] = rule.read(f"BLS_{name.upper()}", text)
        if found.get("instance") is not None:
            check_name("BLS_INSTANCE", found["instance"])
        return cls(**{**found, **options})


@dataclass(frozen=True)
class SettingsSource:
    """Reads the settings of one agent from ``given``, or else from the environment.

    The options override both. Each :meth:`read` reads the environment again.
    """

    given: Settings | None
    options: Options
    environ: Mapping[str, str]

    def read(self) -> Settings:
        options: dict[str, Any] = {**self.options}
        if self.given is not None:
            return replace(self.given, **options)
        return Settings.from_env(self.environ, **options)

    def read_redact_keys(self) -> Sequence[str]:
        """Return ``redact_keys`` alone, without checking the other variables."""
        if self.given is not None:
            return self.read().redact_keys
        if "redact_keys" in self.options:
            return self.options["redact_keys"]
        name = "BLS_REDACT_KEYS"
        return Settings.from_env({name: self.environ.get(name, "")}).redact_keys


def find_unknown_variables(environ: Iterable[str]) -> dict[str, str]:
    """Return unknown ``BLS_*`` variables → a question that suggests a known name."""
    known = {f"BLS_{name.upper()}" for name in rules()}.union(_NO_SETTINGS)
    strange = {name for name in environ if name.startswith("BLS_")} - known
    return {name: ask_whether(name, known) for name in sorted(strange)}


def warn_of_unknown_variables(environ: Iterable[str]) -> None:
    """Log a warning for each unknown ``BLS_*`` variable, once in this process."""
    for name, question in find_unknown_variables(environ).items():
        if name not in _warned:
            _warned.add(name)
            text = (
                f"the variable {name} is no setting, and nothing reads it. {question}"
            )
            logger.warning("%s", text.strip())


def rules() -> dict[str, Rule]:
    """Return the name of each setting → its rule, in the order of :class:`Settings`."""
    return {setting.name: setting.metadata["rule"] for setting in fields(Settings)}


def check_options(options: Mapping[str, Any], settings: object = None) -> Options:
    """Return the keywords of an agent with converted values; ignore the environment.

    Raise ConfigurationError for an unknown keyword or a wrong value.
    """
    if not isinstance(settings, Settings | None):
        kind = type(settings).__name__  # not the value, because it may hold a secret
        raise ConfigurationError("settings", kind, "an object of Settings")
    known = rules()
    checked: dict[str, Any] = {}
    for name, value in options.items():
        # An agent has the keyword ``redis`` instead of ``redis_url``.
        if name not in known or name == "redis_url":
            names = ["redis", *list(known)[1:]]
            likely = ask_whether(name, names)
            rule = "there is no such setting"
            rest = "" if likely else f"The settings are: {', '.join(names)}."
            raise ConfigurationError("keyword", name, rule, likely or rest)
        checked[name] = known[name].check(name, value)
    if options.get("instance") is not None:
        check_name("instance", options["instance"])
    if {"status_interval", "status_ttl"} <= options.keys():
        _check_together(options["status_interval"], options["status_ttl"])
    return cast("Options", checked)


def _check_together(interval: float, ttl: float) -> None:
    if interval * 2 > ttl:
        raise ConfigurationError(
            "status_interval",
            interval,
            f"at most half of status_ttl ({ttl:g} s)",
            "One late refresh must not make a running service disappear; a third is safer.",
        )
