"""What is known before the command line is parsed, and the options of every command."""

from __future__ import annotations

import pytest

from bls_agent.ops.cli.options import arrange
from bls_agent.ops.texts import find_language, find_value


@pytest.mark.parametrize(
    ("given", "arranged"),
    [
        (["send", "订单系统", "reload", "--json"], None),
        (["send", "--json", "订单系统", "reload"], None),
        (
            ["send", "订单系统", "reload", "--arg", "force=true", "--json", '{"n":3}'],
            [
                "send",
                "订单系统",
                "reload",
                "--arg",
                "force=true",
                "--json-args",
                '{"n":3}',
            ],
        ),
        (
            ["call", "a", "b", "--json", " {}", "--json"],
            ["call", "a", "b", "--json-args", " {}", "--json"],
        ),
        (["call", "a", "b", "--json=x"], ["call", "a", "b", "--json-args=x"]),
        (["call", "a", "b", "--json", "[1]"], ["call", "a", "b", "--json-args", "[1]"]),
        (["call", "a", "b", "--json", ""], ["call", "a", "b", "--json-args", ""]),
        (["call", "--", "--json", "{}"], None),
        (["logs", "a", "--json", "{b}"], None),
        (["--redis", "send", "logs", "--json", "{b}"], None),
        (
            ["--lang", "zh", "--redis=x", "send", "a", "b", "--json", "{}"],
            ["--lang", "zh", "--redis=x", "send", "a", "b", "--json-args", "{}"],
        ),
        ([], None),
    ],
)
def test_json_has_two_meanings_for_send_and_call(
    given: list[str], arranged: list[str] | None
) -> None:
    """With a value that begins like JSON it is the arguments, else the output."""
    assert arrange(given) == (given if arranged is None else arranged)


@pytest.mark.parametrize(
    ("given", "environ", "language"),
    [
        ([], {}, "en"),
        ([], {"LANG": "zh_CN.UTF-8"}, "zh"),
        ([], {"LANG": "zh_CN.UTF-8", "BLS_LANG": "en"}, "en"),
        ([], {"BLS_LANG": "ZH"}, "zh"),
        ([], {"BLS_LANG": "fr", "LANG": "zh"}, "zh"),
        (["--lang", "zh", "projects"], {"BLS_LANG": "en"}, "zh"),
        (["projects", "--lang=zh"], {}, "zh"),
        (["--lang", "zh", "projects", "--lang", "en"], {}, "en"),
        (["send", "a", "b", "--", "--lang", "zh"], {}, "en"),
        (["projects", "--lang"], {}, "en"),
        (["projects", "--lang", "fr"], {"LANG": "zh"}, "zh"),
    ],
)
def test_the_language(given: list[str], environ: dict[str, str], language: str) -> None:
    """--lang, BLS_LANG, the locale; what is no language counts as nothing."""
    assert find_language(given, environ) == language


def test_the_last_value_counts() -> None:
    """As for every parser of options."""
    assert find_value("--redis", ["--redis", "a", "logs", "--redis=b"]) == "b"
    assert find_value("--redis", ["logs"]) == ""
