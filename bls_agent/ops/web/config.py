"""The options of the local console; wrong values raise ``ConfigurationError``."""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from bls_agent.connection.endpoint import RedisSource
from bls_agent.core.errors import ConfigurationError
from bls_agent.ops.texts import LANGUAGES
from bls_agent.ops.web.chat import CHATS, Chat
from bls_agent.ops.web.security import split_host

if TYPE_CHECKING:
    from bls_agent.ops.web.auth import User

WEBHOOK_SECRET: Final = "BLS_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
KEY_PREFIX: Final = "whsec_"
LEAST_KEY: Final = 24  # bytes
LARGEST_PORT: Final = 65_535
LONGEST_TITLE: Final = 60
TRACE_ID: Final = "{trace_id}"
NEEDS_USERS: Final = "whoever reaches it commands the fleet, so that it needs users"
MAKE_USERS: Final = (
    "Make a file with `bls-agent console password NAME` and pass it with --users."
)


@dataclass(frozen=True)
class WebhookTarget:
    """The URL to which status changes are posted, and the key that signs them.

    Attributes:
        url: A URL with ``http`` or ``https``, without credentials. The URL of a bot of a
            chat service begins with ``feishu:``, ``dingtalk:``, ``wecom:`` or ``slack:``.
        secret: ``whsec_`` and at least 24 bytes in base64. A bot of Feishu or DingTalk
            has a secret of its own, or ``""``. WeCom and Slack use no secret.

    Raises:
        ConfigurationError: The URL or the secret is wrong.
    """

    url: str = field(repr=False)  # the path of a webhook often holds a token
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.address)
            sound = parts.scheme in {"http", "https"} and bool(parts.hostname)
            sound = sound and parts.port != 0 and self.url.isascii()
            sound = sound and self.url.isprintable() and " " not in self.url
            has_credentials = sound and "@" in parts.netloc
        except ValueError:
            sound = has_credentials = False
        remedy = "Try https://alerts.example/bls."
        if not sound:
            services = ", ".join(f"{name}:" for name in CHATS)
            rule = (
                f"http:// or https://, perhaps after one of {services} in plain ASCII"
            )
            raise ConfigurationError("webhook", "[the address]", rule, remedy)
        if has_credentials:
            rule = "it may have no user and no password, because the signature identifies the sender"
            raise ConfigurationError("webhook", self.place, rule, remedy)
        if self.chat is None:
            _ = self.key

    @property
    def chat(self) -> Chat | None:
        """The chat service that receives the posts; ``None`` for any other receiver."""
        return CHATS.get(self.url.partition(":")[0])

    @property
    def address(self) -> str:
        return self.url if self.chat is None else self.url.partition(":")[2]

    @property
    def place(self) -> str:
        """The URL without path and credentials, so that it may be shown and logged."""
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    @property
    def key(self) -> bytes:
        try:
            plain = self.secret.removeprefix(KEY_PREFIX)
            key = base64.b64decode(plain, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not self.secret.startswith(KEY_PREFIX) or len(key) < LEAST_KEY:
            rule = f"a webhook is signed with {KEY_PREFIX} and at least {LEAST_KEY} bytes in base64"
            remedy = f'Set {WEBHOOK_SECRET}="{KEY_PREFIX}$(openssl rand -base64 32)".'
            shown = "[hidden]" if self.secret else ""
            raise ConfigurationError(WEBHOOK_SECRET, shown, rule, remedy)
        return key


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits for one client, and for all clients together."""

    body: int = 256 * 1024  # bytes of a request's body
    head: int = 24 * 1024  # bytes of a request's head that arrives in several parts
    connections: int = 1_000  # connections that are open at one time
    requests: float = 100.0  # per second, of one user (before login: of one address)
    request_burst: int = 500  # requests at once before that limit applies
    commands: float = 5.0  # commands per second of one user
    command_burst: int = 30  # commands at once before that limit applies
    streams: int = 256  # open event streams
    user_streams: int = 128  # open event streams of one user
    logins: int = 10  # failed logins of an address, then one attempt in 30 s
    all_logins: int = 100  # failed logins of all, then one attempt in 2 s
    hashing: int = 2  # passwords that are verified at once, with 64 MiB for each
    sessions: int = 1_000  # sessions that are kept
    session_idle: float = 8 * 3_600.0  # seconds without a request until a session ends
    session_lifetime: float = 7 * 86_400.0  # seconds after which any session ends
    heartbeat: float = 10.0  # seconds between two heartbeats in a quiet event stream
    stall: float = 20.0  # seconds until a client that reads nothing is disconnected


@dataclass(frozen=True, kw_only=True)
class WebConfig:
    """Where the local console listens, who may use it, and what it shows.

    Without users there is no login. Everybody who can connect then has the name ``local``
    and every role. Users are required behind a proxy, and at any address other than
    loopback.

    Raises:
        ConfigurationError: A value is wrong, or two values contradict each other.
    """

    redis: RedisSource | None = field(default=None, repr=False)
    host: str = "127.0.0.1"  # an IP address
    port: int = 8765  # 0 chooses a free port
    users: Mapping[str, User] = field(default_factory=dict[str, "User"], repr=False)
    # Host names under which browsers may open the console, besides its address.
    allowed_hosts: tuple[str, ...] = ()
    # Trust X-Forwarded-For and X-Forwarded-Proto of a proxy on this machine.
    behind_proxy: bool = False
    root_path: str = ""  # the prefix that the proxy removes, such as /console
    webhook: WebhookTarget | None = None  # the receiver of status changes
    # Keep the newest 5,000 status changes in Redis. If this is off, the console writes to
    # Redis only what users ask for.
    keep_changes: bool = False
    language: str = ""  # zh, en, or "" for the browser's preference
    title: str = ""  # the console's name in header and tab, such as 生产
    # The address of a trace, with {trace_id}, to which log records are linked.
    trace_url: str = ""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= LARGEST_PORT:
            rule = f"a port is between 0 and {LARGEST_PORT}"
            raise ConfigurationError("port", self.port, rule)
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            rule = "an IP address of this machine"
            raise ConfigurationError(
                "host", self.host, rule, "Try 127.0.0.1."
            ) from None
        self._check_exposure()
        self._check_names()
        self._check_trace_url()
        if self.language and self.language not in LANGUAGES:
            rule = f"one of {', '.join(LANGUAGES)}, or empty"
            raise ConfigurationError("language", self.language, rule)
        if len(self.title) > LONGEST_TITLE or not self.title.isprintable():
            rule = f"one line of at most {LONGEST_TITLE} printable characters"
            raise ConfigurationError("title", self.title, rule)

    def _check_exposure(self) -> None:
        if self.users:
            return
        if not is_loopback(self.host):
            rule = f"others can reach this address, and {NEEDS_USERS}"
            raise ConfigurationError("host", self.host, rule, MAKE_USERS)
        if self.behind_proxy:
            rule = f"others come through the proxy, and {NEEDS_USERS}"
            raise ConfigurationError("behind_proxy", True, rule, MAKE_USERS)  # noqa: FBT003 - the value that the caller has passed
        if self.allowed_hosts:
            rule = f"other machines can reach the console under this name, and {NEEDS_USERS}"
            shown = ", ".join(self.allowed_hosts)
            raise ConfigurationError("allowed_hosts", shown, rule, MAKE_USERS)

    def _check_names(self) -> None:
        for name in self.allowed_hosts:
            if split_host(name) != (name.lower(), ""):
                rule = "a host name as browsers send it, without scheme, port and path"
                remedy = "Try console.example."
                raise ConfigurationError("allowed_hosts", name, rule, remedy)
        path = self.root_path
        plain = path.isascii() and path.isprintable()
        ends = path.startswith("/") and not path.endswith("/") and "//" not in path
        if path and (not plain or not ends or set(path) & set("?#\\ %\"'<>")):
            rule = "it begins with a slash, ends without one, and is plain ASCII"
            raise ConfigurationError("root_path", path, rule, "Try /console.")

    def _check_trace_url(self) -> None:
        text = self.trace_url
        try:
            parts = urlsplit(text)
            behind_host = f"{parts.path}?{parts.query}#{parts.fragment}"
            sound = parts.scheme in {"http", "https"} and bool(parts.hostname)
            sound = sound and parts.port != 0 and "@" not in parts.netloc
            sound = sound and TRACE_ID in behind_host
        except ValueError:
            sound = False
        plain = text.isascii() and text.isprintable() and not set(text) & set(" \\")
        if text and not (sound and plain):
            rule = (
                f"http:// or https:// in plain ASCII, without a user, and with "
                f"{TRACE_ID} behind the host"
            )
            remedy = f"Try https://jaeger.example/trace/{TRACE_ID}."
            raise ConfigurationError("trace_url", text, rule, remedy)


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def show_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
