"""Requests of crawlers, and the fingerprints that identify duplicates. No I/O.

Fingerprints stay in Redis for months and are compared between processes. Because a
fingerprint must not change with the version of a library, this module makes the
canonical form of a URL with the standard library alone.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Any, Final, Protocol, Self, cast, runtime_checkable
from urllib.parse import quote, quote_plus, unquote_to_bytes, urlsplit

from bls_agent.core.checks import refuse_text
from bls_agent.core.codec import decode, decode_object, encode_sorted, encode_strictly
from bls_agent.core.errors import ConfigurationError, DecodeError

MAX_URL: Final = 65_535  # bytes
MAX_BODY: Final = 2**20  # bytes
MAX_REQUEST: Final = 2**21  # bytes of JSON

_BEGINNING: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)|(?:about|data):")
_UNPRINTED: Final = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")
_LINE_BREAK: Final = re.compile(r"[\0\r\n]")
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110
_PORTS: Final = {"http": 80, "ws": 80, "https": 443, "wss": 443, "ftp": 21}
# Characters that stay escaped in a path, because unescaped they mean something else.
_KEPT: Final = frozenset(b"/?#;%")
_PATH: Final = "/:@!$&'()*+,;=|[]"
_PLAIN_PATH: Final = re.compile(r"/[A-Za-z0-9_.~/:@!$&'()*+,;=|\[\]-]*+")
# RFC 3986, appendix B, for a URL that has passed _check_url().
_PARTS: Final = re.compile(r"([^:]+):(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?")
_ESCAPE: Final = re.compile("%([0-9A-Fa-f]{2})|[^%]+|%")
_PLAIN: Final = "[A-Za-z0-9_.~-]*+(?:=[A-Za-z0-9_.~-]*+)?+"  # needs no escapes
_PLAIN_QUERY: Final = re.compile(f"{_PLAIN}(?:&{_PLAIN})*+")


@runtime_checkable
class _RequestLike(Protocol):
    """What a fingerprint needs of a :class:`CrawlRequest` or a request of Scrapy."""

    @property
    def url(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def headers(self) -> Any: ...  # name → value or list of values, as text or bytes
    @property
    def body(self) -> bytes | str | None: ...  # ``None`` in a GET of requests


@dataclass(frozen=True)
class CrawlRequest:
    """One request of a crawler, checked at construction, and stored in Redis as JSON.

    Attributes:
        url: The URL with its scheme, at most 65,535 bytes.
        method: An HTTP method, in capitals.
        headers: HTTP headers: name → value.
        body: The body, at most 1 MiB. A ``str`` is encoded as UTF-8.
        meta: Values for the crawler's own use. They are converted to JSON's types: a
            tuple becomes a list, and a ``datetime`` becomes text.
        callback: Name of the function that handles the response.

    Raises:
        ConfigurationError: An attribute has a value that is not allowed, or the whole
            request has more than 2 MiB of JSON.
    """

    url: str
    method: str = "GET"
    headers: Mapping[str, str] | None = field(default=None, hash=False)
    body: bytes = b""
    meta: Mapping[str, Any] | None = field(default=None, hash=False)
    callback: str | None = None

    def __post_init__(self) -> None:
        _check_url(self.url)
        object.__setattr__(self, "method", _check_method(self.method))
        object.__setattr__(self, "headers", _check_headers(self.headers))
        object.__setattr__(self, "body", _check_body(self.body))
        _check_callback(self.callback)
        object.__setattr__(self, "meta", _check_meta(self.meta))
        size = len(self.encode())
        if size > MAX_REQUEST:
            rule = f"a request has at most {MAX_REQUEST} bytes of JSON, not {size}"
            remedy = "Keep what is large elsewhere, and its key in meta."
            raise ConfigurationError("request", self.url[:200], rule, remedy)

    def encode(self) -> bytes:
        """Encode the request as the JSON object that Redis stores.

        Default values are left out. A body that is not UTF-8 is written as
        ``body_base64``.
        """
        parts: dict[str, object] = {"url": self.url}
        if self.method != "GET":
            parts["method"] = self.method
        if self.body:
            try:
                parts["body"] = self.body.decode()
            except UnicodeDecodeError:
                parts["body_base64"] = base64.b64encode(self.body).decode()
        for name in ("headers", "meta", "callback"):
            if (value := getattr(self, name)) is not None:
                parts[name] = value
        return encode_strictly("request", parts)

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Decode a request that :meth:`encode` or another program has written.

        Unknown fields are ignored, and ``null`` fields count as absent. Pickles are
        not read.

        Raises:
            DecodeError: The payload is not a valid request: no JSON object, longer than
                2 MiB, no URL, or a field of the wrong type.
        """
        parts = decode_object(payload, limit=MAX_REQUEST)
        known = {name: parts[name] for name in _FIELDS if parts.get(name) is not None}
        meta = known.pop("meta", None)  # values from JSON need no check
        try:
            if "url" not in known:
                raise DecodeError("bad_request", payload, "it has no url")
            if "body_base64" in known:
                if "body" in known:
                    rule = "it has a body and a body_base64"
                    raise DecodeError("bad_request", payload, rule)
                known["body"] = _decode_body(known.pop("body_base64"), payload)
            request = cls(**known)
            if meta is not None and not isinstance(meta, dict):
                _check_meta(meta)
        except ConfigurationError as error:
            raise DecodeError("bad_request", payload, str(error)) from None
        object.__setattr__(request, "meta", meta or None)
        return request


_FIELDS: Final = (*CrawlRequest.__dataclass_fields__, "body_base64")


def _decode_body(coded: object, payload: bytes) -> bytes:
    try:
        return base64.b64decode(cast("str", coded), validate=True)
    except (TypeError, ValueError):
        rule = "its body_base64 is not Base64"
        raise DecodeError("bad_request", payload, rule) from None


def _check_url(url: object) -> None:
    rule, remedy = "", ""
    if not isinstance(url, str):
        rule = f"a URL is text, not {type(url).__name__}"
    elif len(url if url.isascii() else url.encode("utf-8", "replace")) > MAX_URL:
        rule, remedy = f"a URL has at most {MAX_URL} bytes", "Shorten it."
    elif not (beginning := _BEGINNING.match(url)):
        rule, remedy = "a URL begins with its scheme", "Write https:// before it."
    elif url[-1].isspace() or _UNPRINTED.search(url):
        rule = "a URL holds no control characters, lone surrogates or blanks around it"
        remedy = "Strip it, and percent-encode what belongs to it."
    else:
        try:
            _authority((beginning[1] or "").lower(), beginning[2] or "")
        except ValueError as error:
            rule, remedy = f"it is no URL ({error})", "Look at its host and port."
    if rule:
        shown = url[:200] if isinstance(url, str) else url
        raise ConfigurationError("url", shown, rule, remedy)


def _check_method(method: object) -> str:
    if not isinstance(method, str) or not _TOKEN.fullmatch(method):
        raise ConfigurationError("method", method, "it is an HTTP method", "Try GET.")
    return method.upper()


def _check_callback(callback: object) -> None:
    if callback is not None and (not isinstance(callback, str) or not callback):
        rule, remedy = "it is the name of a function, or None", "Pass its __name__."
        raise ConfigurationError("callback", callback, rule, remedy)


def _check_headers(headers: object) -> dict[str, str] | None:
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        rule = "headers are a mapping of texts"
        raise ConfigurationError("headers", headers, rule)
    given = cast("Mapping[object, object]", headers)
    for name, value in given.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise ConfigurationError("headers", name, "it is no name of a header")
        if not isinstance(value, str) or _LINE_BREAK.search(value):
            rule = f"the value of {name} is text on one line"
            remedy = "Decode bytes, join several values by a comma."
            raise ConfigurationError("headers", value, rule, remedy)
    return cast("dict[str, str]", dict(given)) or None


def _check_body(body: object) -> bytes:
    if isinstance(body, str):
        try:
            body = body.encode()
        except UnicodeEncodeError:
            rule = "a text is valid Unicode"
            raise ConfigurationError("body", body[:80], rule, "Pass bytes.") from None
    if not isinstance(body, bytes):
        raise ConfigurationError("body", body, "it is bytes or text", "Encode it.")
    if len(body) > MAX_BODY:
        rule = f"a body has at most {MAX_BODY} bytes, not {len(body)}"
        raise ConfigurationError("body", body[:80], rule, "Keep it elsewhere.")
    return body


def _check_meta(meta: object) -> dict[str, Any] | None:
    if meta is None:
        return None
    if not isinstance(meta, Mapping):
        raise ConfigurationError("meta", meta, "it is a mapping", "Pass a dict.")
    payload = encode_strictly("meta", dict(cast("Mapping[str, Any]", meta)))
    return cast("dict[str, Any]", decode(payload)) or None


def canonical_url(url: str) -> str:
    """Return a URL in its canonical form, which is equal for all spellings of the URL.

    Scheme and host are in lower case, and the host is ASCII (IDNA). The default port
    and the fragment are removed. Dot segments are resolved. Only necessary percent
    escapes stay, with upper-case digits. The query is sorted by name and value. Raise
    ValueError if the host or the port is invalid.
    """
    scheme, netloc, path, query = cast("re.Match[str]", _PARTS.match(url)).groups("")
    scheme = scheme.lower()
    around = _authority(scheme, netloc)
    if not _PLAIN_PATH.fullmatch(path):  # most paths are plain and need no escaping
        path = _ESCAPE.sub(_normalize, path)
    if netloc and (not path or "/." in path):
        path = _resolve(path)
    query = _sort_query(query)
    return f"{scheme}:{around}{path}{query and '?'}{query}"


def _sort_query(query: str) -> str:
    """Sort a query by name and value, and escape both in the canonical way."""
    pairs = [one.partition("=")[::2] for one in query.split("&") if one]
    if _PLAIN_QUERY.fullmatch(query):  # most queries are plain and need no escaping
        return "&".join(f"{name}={value}" for name, value in sorted(pairs))
    unquoted = sorted(
        tuple(unquote_to_bytes(part.replace("+", " ")) for part in pair)
        for pair in pairs
    )
    return "&".join(
        f"{quote_plus(name)}={quote_plus(value)}" for name, value in unquoted
    )


@lru_cache(maxsize=1_000)  # a small cache suffices because a crawler has few hosts
def _authority(scheme: str, netloc: str) -> str:
    """Return user, host and port in canonical form. Raise ValueError if invalid."""
    parts = urlsplit(f"{scheme}://{netloc}")
    if not parts.hostname:
        if scheme in _PORTS:
            message = "it has no host"
            raise ValueError(message)
        return netloc and f"//{netloc}"
    login, at, _ = netloc.rpartition("@")
    port = parts.port
    shown = "" if port is None or port == _PORTS.get(scheme) else f":{port}"
    return f"//{login}{at}{_host(parts.hostname)}{shown}"


def _normalize(match: re.Match[str]) -> str:
    """Return a matched part of a path, text or one escape, in canonical form."""
    if match[1] is None:
        return quote(match[0], _PATH)
    byte = int(match[1], 16)
    return f"%{byte:02X}" if byte in _KEPT else quote(bytes([byte]), _PATH)


def _resolve(path: str) -> str:
    """Remove the dot segments of a path by the rules of RFC 3986 (5.2.4)."""
    kept: list[str] = []
    segments = path.split("/")[1:] or [""]
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in {".", ".."}:
        kept.append("")
    return "/" + "/".join(kept)


def _host(host: str) -> str:
    if ":" in host:
        address = IPv6Address(host)
        if address.ipv4_mapped is None:
            return f"[{address.compressed}]"
        # Since Python 3.13, ``compressed`` writes the last four bytes in decimal.
        low, zone = int(address) & 0xFFFF_FFFF, address.scope_id
        return f"[::ffff:{low >> 16:x}:{low & 0xFFFF:x}{f'%{zone}' if zone else ''}]"
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode()
    except UnicodeError:  # a label of the host is too long or empty
        return host.lower()


def fingerprint(request: _RequestLike, headers: Iterable[str] = ()) -> str:
    """Return the fingerprint of a request, which is equal for duplicates.

    The fingerprint is made of the method, the canonical URL and the body. It is equal
    in every process, on every machine and with every version of Python.

    Args:
        request: A :class:`CrawlRequest`, or an object with ``url``, ``method``,
            ``body`` and ``headers``, such as a request of Scrapy.
        headers: Names of headers whose values are part of the fingerprint, too.

    Returns:
        SHA-256, 64 hexadecimal digits.

    Raises:
        ConfigurationError: ``request`` is not a request, or its URL or method is wrong.
    """
    if not isinstance(request, CrawlRequest):
        _check_foreign(request)
    refuse_text("headers", headers)
    method, url = request.method.upper().encode(), canonical_url(request.url).encode()
    body = _encoded(request.body or b"")
    # The length is written before each part. Otherwise the end of one part could be
    # read as the beginning of the next part.
    parts = b"%d:%b%d:%b%d:%b" % (len(method), method, len(url), url, len(body), body)
    for name in sorted({name.lower() for name in headers}):
        values = _values(request.headers, name)
        for part in (name.encode(), b"%d" % len(values), *values):
            parts += b"%d:%b" % (len(part), part)
    return hashlib.sha256(parts).hexdigest()


def _check_foreign(request: object) -> None:
    if not isinstance(request, _RequestLike):
        rule = "a request has url, method, headers and body"
        raise ConfigurationError("request", request, rule, "Pass a CrawlRequest.")
    _check_url(request.url)
    _check_method(request.method)


def _values(headers: Mapping[Any, Any] | None, name: str) -> list[bytes]:
    """Return the values of a header, because Scrapy has several for each name."""
    found: list[Any] = []
    for key, value in (headers or {}).items():
        if _encoded(key).lower() == name.encode():
            found += value if isinstance(value, list | tuple) else [value]
    return [_encoded(value) for value in found]


def _encoded(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _plain(value: Any) -> Any:
    """Return mappings and dataclasses as dicts with all their fields, at any depth."""
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, Any]", value).items()
        return {key: _plain(one) for key, one in pairs}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in cast("list[Any]", value)]
    return value


def item_fingerprint(item: object) -> str:
    """Return the fingerprint of an item, which is equal for equal items.

    The order of the fields does not matter.

    Args:
        item: A mapping, such as an ``Item`` of Scrapy, a dataclass, or any other value
            that can be written as JSON.

    Returns:
        SHA-256 of the item's canonical JSON, 64 hexadecimal digits.

    Raises:
        ConfigurationError: The item cannot be written as JSON.
    """
    try:
        payload = encode_sorted(decode(encode_strictly("item", _plain(item))))
    except (TypeError, RecursionError) as error:
        rule = f"it must be a value that JSON can hold ({error})"
        raise ConfigurationError("item", item, rule) from None
    return hashlib.sha256(payload).hexdigest()
