"""What the console is told: refused at construction, with name, rule and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from bls_agent import ConfigurationError
from bls_agent.ops.web.config import Limits, WebConfig, is_loopback, show_host
from tests.ops.web.serving import USERS


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"host": "::1"},
        {"host": "127.0.0.2", "port": 0},
        {"host": "0.0.0.0", "users": USERS},
        {"host": "::", "users": USERS},
        {"host": "192.168.1.5", "users": USERS},
        {"behind_proxy": True, "users": USERS, "allowed_hosts": ("console.example",)},
        {"root_path": "/console"},
        {
            "trace_url": "https://grafana.example:3000/a/tempo#/{trace_id}?x=1&y={trace_id}"
        },
        {"root_path": "/a/b", "language": "zh", "title": "生产 · 华东"},
    ],
)
def test_a_good_configuration(options: dict[str, Any]) -> None:
    """What is safe is taken."""
    assert WebConfig(**options).limits == Limits()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"host": "0.0.0.0"}, "host"),
        ({"host": "::"}, "host"),
        ({"host": "192.168.1.5"}, "host"),
        ({"host": "8.8.8.8"}, "host"),
        ({"host": ""}, "host"),
        ({"host": "localhost"}, "host"),
        ({"host": " 127.0.0.1"}, "host"),
        ({"behind_proxy": True}, "behind_proxy"),
        ({"allowed_hosts": ("console.example",)}, "allowed_hosts"),
        ({"allowed_hosts": ("*",), "users": USERS}, "allowed_hosts"),
        ({"allowed_hosts": ("a:80",), "users": USERS}, "allowed_hosts"),
        ({"allowed_hosts": ("https://a",), "users": USERS}, "allowed_hosts"),
        ({"port": -1}, "port"),
        ({"port": 65_536}, "port"),
        ({"root_path": "console"}, "root_path"),
        ({"root_path": "/console/"}, "root_path"),
        ({"root_path": "//evil.example"}, "root_path"),
        ({"root_path": "/a b"}, "root_path"),
        ({"root_path": "/控制台"}, "root_path"),
        ({"trace_url": "https://jaeger.example/trace"}, "trace_url"),
        ({"trace_url": "https://{trace_id}.example/"}, "trace_url"),
        ({"trace_url": "javascript:alert('{trace_id}')"}, "trace_url"),
        ({"trace_url": "//jaeger.example/{trace_id}"}, "trace_url"),
        ({"trace_url": "https://a:b@jaeger.example/{trace_id}"}, "trace_url"),
        ({"trace_url": "https://jaeger.example/ {trace_id}"}, "trace_url"),
        ({"trace_url": "https://[jaeger/{trace_id}"}, "trace_url"),
        ({"language": "de"}, "language"),
        ({"title": "x" * 61}, "title"),
        ({"title": "生\n产"}, "title"),
    ],
)
def test_a_wrong_configuration_is_refused(options: dict[str, Any], name: str) -> None:
    """Each with the name of what is wrong, before anything is opened."""
    with pytest.raises(ConfigurationError) as error:
        WebConfig(**options)
    assert error.value.name == name
    assert error.value.rule


def test_whoever_exposes_it_is_told_what_to_do() -> None:
    """The remedy is a command."""
    with pytest.raises(ConfigurationError, match="console password"):
        WebConfig(host="0.0.0.0")


def test_secrets_stay_out_of_the_repr() -> None:
    """Neither the URL's password nor a hash is shown."""
    config = WebConfig(redis="redis://:geheim@127.0.0.1:6379", users=USERS)
    assert "geheim" not in repr(config)
    assert "argon2" not in repr(config)


def test_addresses() -> None:
    """Loopback or not, and how they stand in a URL."""
    assert is_loopback("::1") is True
    assert is_loopback("10.0.0.1") is False
    assert show_host("::1") == "[::1]"
    assert show_host("127.0.0.1") == "127.0.0.1"
