"""Settings: defaults, the environment, who beats whom, and what is refused."""

from __future__ import annotations

import dataclasses
import math
import typing
from enum import Enum
from typing import Any

import pytest

from bls_agent import Level, ProjectAgent
from bls_agent.core import settings
from bls_agent.core.errors import ConfigurationError
from bls_agent.core.settings import Mode, Options, Settings, check_options, rules

# Setting → default, a text in the environment, what the text means.
TABLE: dict[str, tuple[object, str, object]] = {
    "redis_url": (
        "redis://127.0.0.1:6379/0",
        "rediss://cache:6380/2",
        "rediss://cache:6380/2",
    ),
    "mode": ("auto", "compat", "compat"),
    "instance": (None, "订单-1", "订单-1"),
    "concurrency": (1, "8", 8),
    "prefetch": (1, "4", 4),
    "command_timeout": (30.0, "1.5", 1.5),
    "command_max_age": (None, "3600", 3600.0),
    "command_size_limit": (1_048_576, "65536", 65_536),
    "status_interval": (10.0, "5", 5.0),
    "status_ttl": (60, "90", 90),
    "stall_after": (5.0, "none", None),
    "replicas": (False, "yes", True),
    "log_level": ("debug", "warn", "warn"),
    "log_list_limit": (10_000, "500", 500),
    "log_buffer": (10_000, "500", 500),
    "log_buffer_bytes": (8 * 1_048_576, "1048576", 1_048_576),
    "shutdown_timeout": (10.0, "0", 0.0),
    "error_window": (None, "60", 60.0),
    "reconnect_max": (2.0, "30", 30.0),
    "redis_timeout": (5.0, "0.5", 0.5),
    "record_ids": (True, "no", False),
    "builtins": (True, "FALSE", False),
    "banner": (True, "0", False),
    "redact_keys": (
        (),
        "pin, 员工号,,-session_id",
        ("pin", "员工号", "-session_id"),
    ),
    "on_redelivery": ("run", "skip", "skip"),
    "dedup_window": (600.0, "0", 0.0),
    "lease_ttl": (15.0, "30", 30.0),
}
SETTINGS = [setting.name for setting in dataclasses.fields(Settings)]
every_setting = pytest.mark.parametrize("name", TABLE)


def test_the_table_is_complete() -> None:
    """This module knows every setting."""
    assert list(TABLE) == SETTINGS


def test_every_setting_is_a_keyword_of_the_agent() -> None:
    """Options lists the settings; only the URL has an argument of its own."""
    assert set(typing.get_type_hints(Options)) == set(SETTINGS) - {"redis_url"}


@every_setting
def test_where_a_setting_comes_from(name: str) -> None:
    """Its keyword, else its variable, blanks around it ignored, else its default.

    A keyword counts even where the variable makes no sense, an empty variable is none.
    """
    default, text, meaning = TABLE[name]
    variable = f"BLS_{name.upper()}"
    for environ, options, expected in (
        ({}, {}, default),
        ({variable: " "}, {}, default),
        ({variable: f" {text}\n"}, {}, meaning),
        ({variable: "\0"}, {name: meaning}, meaning),
    ):
        value = getattr(Settings.from_env(environ, **options), name)
        assert (value, type(value)) == (expected, type(expected)), environ


def test_only_the_given_mapping_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's own environment is left to whoever passes it in."""
    monkeypatch.setenv("BLS_STATUS_TTL", "90")
    assert Settings().status_ttl == Settings.from_env({}).status_ttl == 60


def test_other_variables_are_not_ours() -> None:
    """A BLS_ variable that is no setting belongs to somebody else."""
    assert Settings.from_env({"BLS_PROJECT": "a", "STATUS_TTL": "1"}) == Settings()


VARIABLES = {
    "no number": ("BLS_STATUS_TTL", "soon"),
    "a fraction of an integer": ("BLS_STATUS_TTL", "1.5"),
    "not a number": ("BLS_REDIS_TIMEOUT", "nan"),
    "infinite": ("BLS_REDIS_TIMEOUT", "1e999"),
    "out of range": ("BLS_CONCURRENCY", "0"),
    "thousands of digits": ("BLS_CONCURRENCY", "9" * 5_000),
    "no choice": ("BLS_MODE", "reliably"),
    "no level": ("BLS_LOG_LEVEL", "LOUD"),
    "no boolean": ("BLS_RECORD_IDS", "maybe"),
    "none where a value is needed": ("BLS_PREFETCH", "none"),
    "no name": ("BLS_INSTANCE", "a\nb"),
    "no letter": ("BLS_REDACT_KEYS", "pin,-"),
}


@pytest.mark.parametrize(("name", "text"), VARIABLES.values(), ids=list(VARIABLES))
def test_a_wrong_variable_is_named(name: str, text: str) -> None:
    """The error says which variable has to be changed."""
    with pytest.raises(ConfigurationError, match=f"^{name}: "):
        Settings.from_env({name: text})


LEVELS = {"INFO": "info", "Warning": "warn", "CRITICAL": "error", "debug": "debug"}


@pytest.mark.parametrize(("text", "level"), LEVELS.items(), ids=LEVELS)
def test_levels_have_the_names_that_logging_gives_them(text: str, level: str) -> None:
    """In any case, in the environment and as keywords."""
    assert Settings.from_env({"BLS_LOG_LEVEL": text}).log_level == level
    assert Settings(log_level=text).log_level == level
    assert ProjectAgent("a", log_level=text).log.is_enabled_for(Level(level))
    assert Settings.from_env({"BLS_MODE": "Compat"}).mode == "compat"


async def test_a_variable_that_nobody_reads_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, redis_url: str
) -> None:
    """With the one that is probably meant; ours and other programs' are not told."""
    monkeypatch.setenv("BLS_STATUS_TLL", "90")
    monkeypatch.setenv("BLS_XYZZY", "1")
    monkeypatch.setenv("BLS_LANG", "en")
    monkeypatch.setenv("BLS_WEBHOOK_SECRET", "whsec_")
    monkeypatch.setenv("STATUS_TLL", "1")
    for _ in range(2):
        async with ProjectAgent("订单系统", redis=redis_url):
            pass
    said = [r.getMessage() for r in caplog.records if "is no setting" in r.getMessage()]
    misspelt, unlike = said
    assert misspelt.startswith("the variable BLS_STATUS_TLL is no setting")
    assert misspelt.endswith(" Did you mean BLS_STATUS_TTL?")
    assert unlike == "the variable BLS_XYZZY is no setting, and nothing reads it."


KEYWORDS: dict[str, tuple[str, object]] = {
    "text for a number": ("status_ttl", "60"),
    "boolean for an integer": ("concurrency", True),
    "boolean for seconds": ("redis_timeout", True),
    "fraction for an integer": ("status_ttl", 60.0),
    "integer for a boolean": ("builtins", 1),
    "not a number": ("redis_timeout", math.nan),
    "infinite": ("redis_timeout", math.inf),
    "an integer beyond any float": ("redis_timeout", 10**400),
    "none where a value is needed": ("status_ttl", None),
    "no choice": ("mode", "fast"),
    "no name": ("instance", " a"),
    "bytes": ("instance", b"a"),
    "no names": ("redact_keys", 5),
    "bytes for names": ("redact_keys", b"pin"),
    "no text among the names": ("redact_keys", ["pin", 5]),
    "an empty name": ("redact_keys", ["pin", " "]),
    "a mapping for names": ("redact_keys", {"pin": True}),
}


@pytest.mark.parametrize(("name", "value"), KEYWORDS.values(), ids=list(KEYWORDS))
def test_a_wrong_keyword_is_named(name: str, value: Any) -> None:
    """The error says which argument is wrong, at construction or when checked early."""
    for check in (Settings, lambda **options: check_options(options)):
        with pytest.raises(ConfigurationError, match=f"^{name}: "):
            check(**{name: value})


# Setting → the smallest and the largest value, and the step beyond them.
RANGES: dict[str, tuple[float, float, float]] = {
    "concurrency": (1, 10_000, 1),
    "prefetch": (1, 1_000, 1),
    "command_timeout": (0.001, 86_400.0, 0.0005),
    "command_size_limit": (256, 512 * 1_048_576, 1),
    "status_ttl": (1, 86_400, 1),
    "status_interval": (0.05, 43_200.0, 0.01),
    "stall_after": (0.1, 86_400.0, 0.05),
    "log_list_limit": (1, 10_000_000, 1),
    "log_buffer": (1, 10_000_000, 1),
    "log_buffer_bytes": (128 * 1_024, 4_096 * 1_048_576, 1),
    "shutdown_timeout": (0.0, 86_400.0, 0.01),
    "reconnect_max": (0.05, 86_400.0, 0.01),
    "redis_timeout": (0.05, 86_400.0, 0.01),
}


COMPANIONS: dict[str, dict[str, Any]] = {
    "status_ttl": {"status_interval": 0.05},
    "status_interval": {"status_ttl": 86_400},
}


@pytest.mark.parametrize("name", RANGES)
def test_a_range_ends_where_it_is_said(name: str) -> None:
    """The bounds themselves are allowed, the next values beyond them are not."""
    lowest, highest, step = RANGES[name]
    companions = COMPANIONS.get(name, {})
    for value in (lowest, highest):
        settings = Settings(**{**companions, name: value})
        assert getattr(settings, name) == value
    for value in (lowest - step, highest + step):
        with pytest.raises(ConfigurationError, match=f"^{name}: "):
            Settings(**{**companions, name: value})


def test_whole_seconds_become_floats() -> None:
    """Seconds may be given as an integer and are a float afterwards."""
    assert isinstance(Settings(redis_timeout=3).redis_timeout, float)


@pytest.mark.parametrize(("interval", "ttl"), [(30.0, 60), (1.0, 2)])
def test_two_refreshes_fit_into_a_life(interval: float, ttl: int) -> None:
    """An interval of exactly half of the status's life is the longest."""
    settings = Settings(status_interval=interval, status_ttl=ttl)
    assert settings.status_interval * 2 == settings.status_ttl
    for check in (Settings, lambda **options: check_options(options)):
        with pytest.raises(ConfigurationError, match=r"^status_interval: "):
            check(status_interval=interval + 0.01, status_ttl=ttl)


def test_a_combination_is_checked_with_the_environment() -> None:
    """A keyword that fits the default need not fit what the environment says."""
    check_options({"status_interval": 20.0})
    with pytest.raises(ConfigurationError, match=r"^status_interval: "):
        Settings.from_env({"BLS_STATUS_TTL": "30"}, status_interval=20.0)


@pytest.mark.parametrize(
    "names",
    [
        ("pin", "员工号"),
        ["pin", "员工号"],
        "pin, 员工号",
        "员工号,pin",
        {"pin", "员工号"},
    ],
    ids=["tuple", "list", "text", "other order", "set"],
)
def test_names_may_be_given_in_any_form(names: Any) -> None:
    """A sequence, a set, or one text with commas: afterwards it is a tuple."""
    given = Settings(redact_keys=names).redact_keys
    assert isinstance(given, tuple)
    assert sorted(given) == ["pin", "员工号"]
    check_options({"redact_keys": names})


class Word(str, Enum):  # noqa: UP042 - str() of a StrEnum is its value
    """Unlike a StrEnum: the str() of a member is no text of ours."""

    MODE = "Compat"
    NAME = "订单-1"
    KEY = "员工号"


def test_a_member_of_an_enum_is_its_text() -> None:
    """As a setting and among the names."""
    mode: Any = Word.MODE
    given = Settings(mode=mode, instance=Word.NAME, redact_keys=[Word.KEY])
    assert (given.mode, given.instance) == ("compat", "订单-1")
    assert given.redact_keys == ("员工号",)
    assert {type(given.instance), *map(type, given.redact_keys)} == {str}


def test_an_unknown_keyword_is_refused() -> None:
    """A misspelt keyword is refused with the closest setting, else with all of them."""
    with pytest.raises(ConfigurationError) as caught:
        check_options({"status_tll": 60})
    assert str(caught.value) == (
        "keyword: 'status_tll' is not allowed; there is no such setting. "
        "Did you mean status_ttl?"
    )
    with pytest.raises(ConfigurationError, match=r"status_ttl, .*lease_ttl\.$"):
        check_options({"xyzzy": 60})


def test_no_setting_stands_among_the_other_variables() -> None:
    """A variable is a setting or is read elsewhere, and never both."""
    settings_of_agents = {f"BLS_{name.upper()}" for name in rules()}
    assert not settings_of_agents.intersection(settings._NO_SETTINGS)


def test_settings_do_not_change() -> None:
    """Settings that were checked cannot be altered behind the check."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().status_ttl = 0  # type: ignore[misc]


def test_settings_do_not_show_the_password() -> None:
    """Settings may be printed and logged: credentials of the URL are masked."""
    settings = Settings(redis_url="redis://service:hunter2@cache:6379/0")
    assert "hunter2" not in repr(settings)
    assert "status_ttl=60" in repr(settings)


def test_every_mode_is_accepted() -> None:
    """What the type allows is what the check allows."""
    for mode in typing.get_args(Mode):
        assert Settings(mode=mode).mode == mode
