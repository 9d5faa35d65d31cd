"""What is taken out of records and messages, what stays, and what it costs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from unicodedata import normalize

import orjson
import pydantic
import pytest
from hypothesis import assume, given, settings, strategies as st

from bls_agent.core.codec import encode
from bls_agent.core.errors import (
    ArgumentError,
    BlsError,
    ConfigurationError,
    DecodeError,
    RedisUnavailableError,
)
from bls_agent.core.redaction import Redactor, Verdict, redact
from bls_agent.core.redaction.patterns import is_kept, redact_text
from bls_agent.project.log.log import LogStream
from bls_agent.project.log.record import LogRecord
from bls_agent.project.messages import Level, Outcome, OutcomeKind

SECRET = "hunter2"
GONE = "[redacted]"
OWN_NAMES = ("ssn", "员工号", "card_number", "пароль", "-session_id")

redactor = Redactor()
own = Redactor(OWN_NAMES)


def words(text: str) -> list[str]:
    """Give the words of a text."""
    return text.split()


def wide(text: str) -> str:
    """Write a text in fullwidth characters."""
    return "".join(chr(ord(c) + 0xFEE0) if " " < c < "\x7f" else c for c in text)


# --- names

SECRET_NAMES = words(
    """
    password Password PASSWORD passwd user_password DB_PASSWORD password2 passphrase passcode
    secret client_secret clientSecret AppSecret SECRET_KEY_BASE
    token accessToken refresh_token csrftoken X-CSRF-Token id-token bearer_token jwt
    api_key apikey X-API-Key apiKey APIKey openai.api.key access_key_id privateKey signing-key
    authorization Authorization Proxy-Authorization HTTP_AUTHORIZATION auth AUTH_HEADER
    cookie Set-Cookie cookies session session_id PHPSESSID JSESSIONID credential credentials
    pwd userPwd pin PIN userPIN pin_code otp pass db_pass smtpPass
    密码 用户密码 登录口令 密钥 私钥 访问令牌 凭据 短信验证码 token_name has_token
    tokenizer_secret max_tokens session_count
    """
)

HARMLESS_NAMES = words(
    """
    user name order key keys id monkey keyboard primary_key sort-key shipping pinned spinning
    mapping opinion author authors authority authorities co_author tokenizer tokenize
    tokenization compass passed passenger bypass classpath secretary possession obsession
    hotpot password_error TokenError secretWarning 密度 口味 凭空 状态 commandId outcome error
    result durationMs truncated agent
    """
)


def test_a_name_that_holds_a_secret() -> None:
    """Capitals, separators and what stands around a secret's word do not hide it."""
    assert [name for name in SECRET_NAMES if not redactor.is_secret(name)] == []


def test_a_name_that_only_looks_like_one() -> None:
    """A word that holds a secret's word by chance does not make one."""
    assert [name for name in HARMLESS_NAMES if redactor.is_secret(name)] == []


COUNTING_NAMES = words(
    """
    max_tokens maxTokens prompt_tokens completion_tokens total_tokens tokens n_tokens
    session_count sessions token_limit cookie_max_age password_length session_timeout tokens_used
    token_expires_in secrets 令牌数 密码长度
    """
)


@pytest.mark.parametrize("name", COUNTING_NAMES)
def test_a_number_that_counts_is_kept(name: str) -> None:
    """Of tokens, sessions and such the number may be seen, what they are may not."""
    for number in (17, 0, 2.5, "4096"):
        assert redactor.tree({name: number}) == {name: number}
        assert redactor.text(f"{name}={number}, x") == f"{name}={number}, x"
    assert redactor.tree({name: SECRET}) == {name: GONE}
    assert redactor.text(f"{name}={SECRET}") == f"{name}={GONE}"


def test_what_language_models_count_is_kept() -> None:
    """Containers that hold nothing but counts are kept, in trees and in texts."""
    usage = {"prompt_tokens_details": {"cached_tokens": 3, "audio_tokens": None}}
    assert redactor.tree(usage) == usage
    text = orjson.dumps(usage).decode()
    assert redactor.text(text) == text
    assert redactor.tree({"tokens": [1, "a"]}) == {"tokens": GONE}


def test_own_names_are_added() -> None:
    """Long names may stand anywhere, short ones as a word; capitals do not count."""
    for name in (
        "ssn",
        "user_ssn",
        "员工号",
        "新员工号",
        "cardNumber",
        "CARD-NUMBER-2",
    ):
        assert own.is_secret(name)
    for name in ("ПАРОЛЬ", "пароль_2", "card number"):
        assert own.is_secret(name)
    for name in ("ssnet", "classname", "card", "员工"):
        assert not own.is_secret(name)
    assert own.tree({"ssn": 5}) == {"ssn": GONE}
    assert own.text(f"员工号：{SECRET}。") == f"员工号：{GONE}。"
    assert told({"Card\nNumber": 5}, redactor=own)["metadata"] == {"Card\nNumber": GONE}
    record = told({"a": [{"ПАРОЛЬ": SECRET}]}, redactor=own)
    assert record["metadata"] == {"a": [{"ПАРОЛЬ": GONE}]}


@pytest.mark.parametrize("name", [wide("ID") + "号", normalize("NFD", "numéro")])
def test_an_own_name_in_another_form_of_unicode(name: str) -> None:
    """Fullwidth or decomposed, it is the same name, as a secret and as an exception."""
    usual = normalize("NFKC", name)
    assert usual != name
    one = Redactor([name])
    for form in (name, usual):
        assert one.is_secret(form)
        assert told({form: SECRET}, redactor=one)["metadata"] == {form: GONE}
    assert not Redactor([f"-{wide('PIN')}"]).is_secret("PIN")


def test_exactly_one_name_is_exempt() -> None:
    """``-session_id`` lets that name through, in any spelling, and no other one."""
    for name in ("session_id", "sessionId", "SESSION-ID"):
        assert not own.is_secret(name)
        assert own.text(f"{name}={SECRET}") == f"{name}={SECRET}"
    for name in ("session", "my_session_id", "session_id2"):
        assert own.is_secret(name)


def test_own_names_in_one_text() -> None:
    """The form of the environment is understood, too."""
    assert Redactor("pin, 员工号,,-session_id").extra == (
        "pin",
        "员工号",
        "-session_id",
    )
    assert repr(Redactor(["pin"])) == "Redactor(('pin',))"


# --- texts

TEXTS: dict[str, tuple[str, str]] = {
    "assignment": (f"password={SECRET}", f"password={GONE}"),
    "colon": (f"password: {SECRET} x", f"password: {GONE} x"),
    "arrow": (f":token => {SECRET}", f":token => {GONE}"),
    "comparison": (f"if token != '{SECRET}':", f"if token != '{GONE}':"),
    "quotes": (f'password="{SECRET} {SECRET}" x', f'password="{GONE}" x'),
    "three quotes": (f'token = """{SECRET}""" x', f'token = """{GONE}""" x'),
    "bytes": (f"password=b'{SECRET}', x", f"password=b'{GONE}', x"),
    "subscript": (f"os['TOKEN'] = '{SECRET}'", f"os['TOKEN'] = '{GONE}'"),
    "form field": (f"user[password]={SECRET}&x=1", f"user[password]={GONE}&x=1"),
    "dataclass": (
        f"User(name='a', password='{SECRET}', n=1)",
        f"User(name='a', password='{GONE}', n=1)",
    ),
    "constructor": (f"(pin=Pin('{SECRET}'), n=1)", f"(pin={GONE}, n=1)"),
    "punctuation inside": (
        f"password=,{SECRET},a){SECRET};{SECRET}, host=h",
        f"password={GONE}, host=h",
    ),
    "connection string": (
        f"Server=h;Password={SECRET};Database=d",
        f"Server=h;Password={GONE};Database=d",
    ),
    "shell": (f"export DB_PASSWORD={SECRET}; ls", f"export DB_PASSWORD={GONE}; ls"),
    "JSON": (
        f'{{"a":1,"password":"{SECRET}","b":2}}',
        f'{{"a":1,"password":"{GONE}","b":2}}',
    ),
    "JSON, number": ('{"pin": 123456, "b": 2}', f'{{"pin": "{GONE}", "b": 2}}'),
    "JSON, container": (
        f'{{"credentials": {{"a": ["}}{SECRET}"]}}, "b": 2}}',
        f'{{"credentials": "{GONE}", "b": 2}}',
    ),
    "JSON, escaped quote": (
        rf'{{"token": "a\"{SECRET}", "b": "c"}}',
        f'{{"token": "{GONE}", "b": "c"}}',
    ),
    "JSON in JSON": (
        rf'{{"a": "{{\"token\": \"x\\\"{SECRET}\", \"b\": 1}}"}}',
        rf'{{"a": "{{\"token\": \"{GONE}\", \"b\": 1}}"}}',
    ),
    "JSON in JSON, number": (
        r'"{\"pin\": 123456, \"b\": 1}"',
        rf'"{{\"pin\": \"{GONE}\", \"b\": 1}}"',
    ),
    "JSON, cut off": (f'{{"a":1,"password":"{SECRET}', f'{{"a":1,"password":"{GONE}'),
    "JSON, cut off in a container": (
        f'{{"cookies":{{"a":"{SECRET}","b"',
        f'{{"cookies":"{GONE}"',
    ),
    "escaped name": (
        rf'"\u5bc6\u7801": "{SECRET}"',
        rf'"\u5bc6\u7801": "{GONE}"',
    ),
    "name in bytes": (
        rf'"\xe5\xaf\x86\xe7\xa0\x81":"{SECRET}',
        rf'"\xe5\xaf\x86\xe7\xa0\x81":"{GONE}',
    ),
    "doubly escaped name": (
        rf'"\\u5bc6\\u7801":"{SECRET}',
        rf'"\\u5bc6\\u7801":"{GONE}',
    ),
    "Chinese": (f"用户密码：{SECRET}，登录失败", f"用户密码：{GONE}，登录失败"),
    "two words": (f"the API key: {SECRET}", f"the API key: {GONE}"),
    "header": (f"Authorization: Basic {SECRET} =\nx", f"Authorization: {GONE}\nx"),
    "header in quotes": (
        f'curl -H "Authorization: Bearer {SECRET}" http://h/',
        f'curl -H "Authorization: {GONE}" http://h/',
    ),
    "header without a line": (
        f"authorization=Bearer {SECRET} x=1",
        f"authorization={GONE} x=1",
    ),
    "headers in bytes": (
        rf"b'X-Token: {SECRET}\r\nCookie: a={SECRET}; b={SECRET}\r\nHost: h'",
        rf"b'X-Token: {GONE}\r\nCookie: {GONE}\r\nHost: h'",
    ),
    "scheme alone": (f"sent Bearer x1{SECRET}", f"sent Bearer {GONE}"),
    "cookies": (f"Cookie: a={SECRET}; b={SECRET}", f"Cookie: {GONE}"),
    "query": (
        f"GET /a?token={SECRET}&x=1&api_key={SECRET}#f",
        f"GET /a?token={GONE}&x=1&api_key={GONE}",
    ),
    "query of a URL": (f"http://h/?access_token={SECRET}&x=1", f"http://h/?access_token={GONE}&x=1"),
    "command line": (
        f"mysql --password {SECRET} --user a",
        f"mysql --password {GONE} --user a",
    ),
    "command line, assignment": (f"x --token={SECRET} y", f"x --token={GONE} y"),
    "command line, one dash": (f"java -token {SECRET} y", f"java -token {GONE} y"),
    "command line in a list": (
        f"['x', '--api-key', '{SECRET}', '-v']",
        f"['x', '--api-key', '{GONE}', '-v']",
    ),
    "XML": (f"<a><Password k='1'>{SECRET}</Password></a>", f"<a><Password k='1'>{GONE}</Password></a>"),
    "pydantic": (
        f"1 error for A\npassword\n  Value error, {SECRET} [type=v, input_value='{SECRET}', input_type=str]",
        f"1 error for A\npassword\n  {GONE} [type=v, input_value={GONE}, input_type=str]",
    ),
    "pydantic, cut": (
        f"n\n  Missing [type=missing, input_value={{'a': 1, 'pas...{SECRET}'}}, input_type=dict]",
        f"n\n  Missing [type=missing, input_value={GONE}, input_type=dict]",
    ),
    "argument": (
        f"arguments of 'login': 'password' Value error, {SECRET}; 'x' is missing",
        f"arguments of 'login': 'password' {GONE}; 'x' is missing",
    ),
    "pair": (f"('password', '{SECRET}') x", f"('password', '{GONE}') x"),
    "pairs in bytes": (
        f"[(b'host', b'h'), (b'cookie', b'{SECRET}')]",
        f"[(b'host', b'h'), (b'cookie', b'{GONE}')]",
    ),
    "pair of a number": ("('pin', 123456)", f"('pin', {GONE})"),
    "pair in JSON": (f'[["token", "{SECRET}"]]', f'[["token", "{GONE}"]]'),
    "name and value": (
        f"{{'name': 'password', 'value': '{SECRET}', 'x': 1}}",
        f"{{'name': 'password', 'value': '{GONE}', 'x': 1}}",
    ),
    "name and value, JSON in JSON": (
        rf'{{\"key\":\"DB_PASSWORD\",\"value\":\"{SECRET}\"}}',
        rf'{{\"key\":\"DB_PASSWORD\",\"value\":\"{GONE}\"}}',
    ),
    "attributes": (
        f'<input name="password" value="{SECRET}">',
        f'<input name="password" value="{GONE}">',
    ),
    "attributes of a kind": (
        f"<input type='password' value='{SECRET}'/>",
        f"<input type='password' value='{GONE}'/>",
    ),
    "YAML block": (
        f"  password: |\n        {SECRET}\n        x\n",
        f"  password: |\n        {GONE}\n",
    ),
    "YAML, next line": (
        f"a: 1\npassword:\n        {SECRET}\n",
        f"a: 1\npassword:\n        {GONE}\n",
    ),
    "YAML, list": (
        f"- tokens:\n        - {SECRET}\n\n        - b\n",
        f"- tokens:\n        {GONE}\n",
    ),
    "CDATA": (
        f"<pin><![CDATA[<{SECRET}>]]></pin>",
        f"<pin><![CDATA[{GONE}]]></pin>",
    ),
    "joined": (f'x = "password=" + "{SECRET}" + y', f'x = "password=" + "{GONE}" + y'),
    "joined often": (
        f"password = 'a' + '{SECRET}' + '{SECRET}', b",
        f"password = '{GONE}', b",
    ),
    "fullwidth": (wide("password=") + SECRET, wide("password=") + GONE),
    "fullwidth word": (wide("PIN:") + f"{SECRET}，x", wide("PIN:") + f"{GONE}，x"),
    "percent-encoded": (f"/go?to=%2Fa%3Ftoken%3D{SECRET}", f"/go?to=%2Fa%3Ftoken%3D{GONE}"),
    "PEM": (
        f"key -----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY----- x",
        f"key {GONE} x",
    ),
    "PEM, cut off": (rf"x -----BEGIN PRIVATE KEY-----\n{SECRET}", f"x {GONE}"),
}  # fmt: skip

SHAPES = {
    "GitHub": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "GitHub, fine-grained": "github_pat_11ABCDEFG0abcdefghij_abcdefgh",
    "GitLab": "glpat-xYz_123456789-abcdef",
    "Slack": "xoxb-123456789012-abcdefABCDEF",
    "language model": "sk-proj-abc123DEF456ghi789",
    "Stripe": "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
    "Amazon": "AKIAIOSFODNN7EXAMPLE",
    "Alibaba": "LTAI5tQ1abcdefghijklmnop",
    "Google": "AIzaSyA-1234567890abcdefghijklmnopqrstu",
    "JSON Web Token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc-_123",
}
TEXTS |= {name: (f"use {shape}, x", f"use {GONE}, x") for name, shape in SHAPES.items()}

URLS: dict[str, tuple[str, str]] = {
    "password": (f"redis://:{SECRET}@h:6379/0", "redis://***@h:6379/0"),
    "user": (f"at redis://u:{SECRET}@h/0 x", "at redis://***@h/0 x"),
    "user alone": (f"https://{SECRET}@h/a", "https://***@h/a"),
    "slash": (f"redis://u:a/{SECRET}@h/0", "redis://***@h/0"),
    "slash behind digits": (f"redis://u:12/{SECRET}@h/0", "redis://***@h/0"),
    "at sign": (f"https://u:a@{SECRET}@h/0", "https://***@h/0"),
    "hash": (f"amqp://u:a#{SECRET}@h/0", "amqp://***@h/0"),
    "question mark": (f"redis://u:a?{SECRET}@h/0", "redis://***@h/0"),
    "blank": (f"redis://u:a {SECRET}@h/0", "redis://***@h/0"),
    "quote": (f"redis://u:a'{SECRET}@h/0", "redis://***@h/0"),
    "in quotes": (f"'redis://u:{SECRET}@h/0', x", "'redis://***@h/0', x"),
    "escaped slashes": (rf"redis:\/\/u:{SECRET}@h\/0", r"redis:\/\/***@h\/0"),
    "two": (
        f"redis://u:{SECRET}@a redis://u:{SECRET}@b",
        "redis://***@a redis://***@b",
    ),
    "percent-encoded": (
        f"http://h/go?to=redis%3A%2F%2Fu%3A{SECRET}%40h%2F0&x=1",
        "http://h/go?to=redis%3A%2F%2F***%40h%2F0&x=1",
    ),
    "percent-encoded, small": (
        f"/go?to=amqp%3a%2f%2fu%3aa%2f{SECRET}%40h",
        "/go?to=amqp%3a%2f%2f***%40h",
    ),
    "inside": (
        f"http://h/go?to=redis://u:{SECRET}@a",
        "http://h/go?to=redis://***@a",
    ),
    "cut off": (f"at redis://u:{SECRET}", "at redis://***"),
    "cut off, marked": (f"at redis://u:{SECRET}…", "at redis://***…"),
    "cut off behind digits": ("at redis://u:123…", "at redis://***…"),
    "host like a secret": (
        f"http://a:{SECRET}@auth:8080/x",
        "http://***@auth:8080/x",
    ),
}
TEXTS |= {f"URL, {name}": row for name, row in URLS.items()}


@pytest.mark.parametrize("text", ["ssh://git@h/a.git", "at git+ssh://git@h/a.git x"])
def test_the_user_of_git_servers_is_no_secret(text: str) -> None:
    """Everybody is called so there; with a password it goes like any other."""
    assert redactor.text(text) == text
    assert redactor.text(f"ssh://git:{SECRET}@h/a") == "ssh://***@h/a"


@pytest.mark.parametrize(("text", "shown"), TEXTS.values(), ids=list(TEXTS))
def test_a_secret_is_taken_out(text: str, shown: str) -> None:
    """What is secret goes, what stands around it stays, once, and wherever it stands."""
    assert redactor.text(text) == shown
    assert SECRET not in shown
    assert redactor.text(shown) == shown
    around = 'Traceback:\n  File "/app/a.py", line 7, in b\n    {}\n'
    if not text.endswith((SECRET, '"b"', "…")):  # not those that are cut off
        assert SECRET not in redactor.text(around.format(text) * 3)
    assert SECRET not in redactor.text("x" * 5_000 + "\n" + text)


# A part of a token is no token, and what stands before the @ may look like a host.
NEEDS_ITS_END = {
    *SHAPES, "scheme alone", "pydantic, cut", "URL, user alone", "URL, slash behind digits",
    "URL, at sign", "URL, blank", "URL, quote",
}  # fmt: skip
CUTTABLE = {name: row for name, row in TEXTS.items() if name not in NEEDS_ITS_END}


@pytest.mark.parametrize("mark", ["", "…"], ids=["no mark", "mark"])
def test_a_text_may_be_cut_off_anywhere(mark: str) -> None:
    """The beginning of a secret is as secret as the whole."""
    for text, _ in CUTTABLE.values():
        for end in range(len(text)):
            assert SECRET[:4] not in redactor.text(text[:end] + mark)


HARMLESS_TEXTS = {
    "words": "order 17 accepted for 某用户, paid by card",
    "time": "2026-01-12T12:34:56.789Z: done",
    "pairs": "order=17 customer='某用户' price: 3.50",
    "web page": "http://host:8080/path?mail=a@b.de",
    "user's page": "see https://example.org/@user for more",
    "places": "redis://h:6379, (http://h:80). mongodb://a:1,b:2/db, http://[::1]:80/",
    "socket": "unix:///run/redis@1.sock"[:15] + "/redis.sock?db=0",
    "host and port": "Error 111 connecting to session-store:6379. Refused.",
    "host of a URL": "http://auth:8080/x and https://token-service:443",
    "source": "session.py:12: in get_token",
    "frame": '  File "/app/token.py", line 12, in session',
    "class": "jwt.exceptions.InvalidTokenError: Signature verification failed",
    "class of a module": "django.contrib.auth.models.User.DoesNotExist: no such user",
    "scope": "Session::new failed",
    "author": "author: me, authority=ca, tokenizer: bert",
    "nothing": "password=None token: null secret=true pin='' otp=***",
    "end of line": "Enter password:\nok",
    "switch": "mysql --no-password --user a",
    "flag before a flag": "x --token --verbose",
    "key": "primary key: 5, sort key: name",
    "argument": "arguments of 'reset_token': 'user' is missing",
    "own words": "arguments of 'login': 'password' must be a string, not an integer",
    "list of words": "missing: 'name', 'password', 'email'",
    "sum": "total = 'a' + 'b', value='x', name: order value: 5",
    "encoded place": "/go?to=http%3A%2F%2Fh%3A80%2Fa&b=1 or http%3A%2F%2Fh%3A80",
    "next line": "Error while reading session:\n    Traceback (most recent call last):",
    "fullwidth words": wide("order:17,name=某"),
    "no token": "task-1234567890123456 risk-assessment-for-2026",
}


@pytest.mark.parametrize("text", HARMLESS_TEXTS.values(), ids=list(HARMLESS_TEXTS))
def test_what_is_no_secret_stays(text: str) -> None:
    """A text without secrets is the very same object afterwards."""
    assert redactor.text(text) is text


@pytest.mark.parametrize("length", [65_536, 65_537, 10_000_000])
def test_a_giant_text_loses_its_end(length: int) -> None:
    """No more is looked at than a record can hold several times; the rest goes."""
    text = redactor.text(f"password={SECRET} ".ljust(length, "x"))
    assert text.startswith(f"password={GONE} x")
    assert len(text) <= 65_540
    assert redactor.text("y" * length)[-1] == ("y" if length == 65_536 else "…")


# --- trees


@dataclass
class Account:
    user: str
    password: str


class Model(pydantic.BaseModel):
    user: str
    token: str


class Described:
    def __repr__(self) -> str:
        return f"<Client secret='{SECRET}'>"


def chained() -> Exception:
    try:
        try:
            raise KeyError(f"token={SECRET}")
        except KeyError as inner:
            raise ValueError(f"redis://u:{SECRET}@h") from inner
    except ValueError as error:
        return error


METADATA: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "flat": ({"password": SECRET, "n": 1}, {"password": GONE, "n": 1}),
    "number": ({"pin": 1234}, {"pin": GONE}),
    "list": ({"tokens": [SECRET]}, {"tokens": GONE}),
    "container": ({"auth": {"a": {"b": SECRET}}}, {"auth": GONE}),
    "deep": ({"a": [{"b": ({"token": SECRET},)}]}, {"a": [{"b": [{"token": GONE}]}]}),
    "absent": ({"token": None, "has_token": True}, {"token": None, "has_token": True}),
    "empty": ({"token": ""}, {"token": ""}),
    "text": ({"a": f"password={SECRET}"}, {"a": f"password={GONE}"}),
    "URL": ({"url": f"redis://u:{SECRET}@h/0"}, {"url": "redis://***@h/0"}),
    "key": ({f"redis://u:{SECRET}@h": 1}, {"redis://***@h": 1}),
    "secret key with a secret": ({f"password={SECRET}": 1}, {f"password={GONE}": GONE}),
    "Chinese": ({"a": {"用户密码": SECRET, "商品": "茶"}}, {"a": {"用户密码": GONE, "商品": "茶"}}),
    "dataclass": ({"a": Account("u", SECRET)}, {"a": {"user": "u", "password": GONE}}),
    "model": ({"a": Model(user="u", token=SECRET)}, {"a": f"Model(user='u', token='{GONE}')"}),
    "repr": ({"a": Described()}, {"a": f"<Client secret='{GONE}'>"}),
    "exception": ({"a": ValueError(f"pin: {SECRET}")}, {"a": f"ValueError: pin: {GONE}"}),
    "bytes": ({"a": f"pwd={SECRET}".encode()}, {"a": f"pwd={GONE}"}),
    "set": ({"a": {f"pwd={SECRET}"}}, {"a": [f"pwd={GONE}"]}),
    "no-break space": ({"API\u00a0key": SECRET}, {"API\u00a0key": GONE}),
    "key of bytes": ({"a": {b"password": SECRET}}, {"a": {"password": GONE}}),
    "line break": ({"Access\nKey": SECRET}, {"Access\nKey": GONE}),
    "tab": ({"API\tKey": SECRET}, {"API\tKey": GONE}),
    "backslash": ({"dir\\token": SECRET}, {"dir\\token": GONE}),
    "command line": (
        {"argv": ["x", "--password", SECRET, "--pin", "-v", "y"]},
        {"argv": ["x", "--password", GONE, "--pin", "-v", "y"]},
    ),
    "number in a command line": (
        {"argv": ["x", "--pin", 1234, "--max-tokens", "100", "--pin"]},
        {"argv": ["x", "--pin", GONE, "--max-tokens", "100", "--pin"]},
    ),
    "headers": (
        {"headers": [(b"Cookie", SECRET.encode()), (b"Host", b"h")]},
        {"headers": [["Cookie", GONE], ["Host", "h"]]},
    ),
    "pair": ({"a": ("password", SECRET)}, {"a": ["password", GONE]}),
    "fullwidth": ({wide("password"): SECRET}, {wide("password"): GONE}),
    "labels": (
        {"env": [{"name": "DB_PASSWORD", "value": SECRET}, {"name": "HOME", "value": "/"}]},
        {"env": [{"name": "DB_PASSWORD", "value": GONE}, {"name": "HOME", "value": "/"}]},
    ),
    "flat labels": (
        {"name": "DB_PASSWORD", "value": SECRET},
        {"name": "DB_PASSWORD", "value": GONE},
    ),
    "schema": (
        {"type": "object", "properties": {"pin": {"type": "string", "default": SECRET}}},
        {"type": "object", "properties": {"pin": {"type": "string", "default": GONE}}},
    ),
    "no word of a schema": (
        {"type": "object", "properties": {"pin": {"type": "string", "given": SECRET}}},
        {"type": "object", "properties": {"pin": {"type": "string", "given": GONE}}},
    ),
    "properties": ({"properties": {"pin": {"type": SECRET}}}, {"properties": {"pin": GONE}}),
    "errors of pydantic": (
        {"errors": [{"type": "v", "loc": ("a", "pin"), "msg": f"no {SECRET}", "input": SECRET}]},
        {"errors": [{"type": "v", "loc": ["a", "pin"], "msg": GONE, "input": GONE}]},
    ),
    "faults": (
        {"fields": {"password": "is missing", "pin": "must be a string, not an integer"}},
        {"fields": {"password": "is missing", "pin": "must be a string, not an integer"}},
    ),
}  # fmt: skip


def told(metadata: dict[str, object], message: str = "x", **options: Any) -> Any:
    """Give a record as it leaves, read again."""
    record = LogRecord(Level.INFO, message, metadata, now=0.0, **options)
    record.number(b"")
    return orjson.loads(record.payload)


@pytest.mark.parametrize(("metadata", "kept"), METADATA.values(), ids=list(METADATA))
def test_a_record_leaves_without_secrets(
    metadata: dict[str, object], kept: dict[str, object]
) -> None:
    """Whatever objects the metadata holds: what counts is the JSON that they become."""
    assert told(metadata)["metadata"] == kept
    assert told({"a": {"b": [metadata]}})["metadata"] == {"a": {"b": [kept]}}


def test_a_message_leaves_without_secrets() -> None:
    """The message is looked at, and the metadata of a clean one, too."""
    record = told({"password": SECRET}, f"login with password={SECRET}")
    assert record["message"] == f"login with password={GONE}"
    assert SECRET not in str(record)


@pytest.mark.parametrize("size", [20_000, 70_000])
def test_secrets_go_before_anything_is_cut(size: int) -> None:
    """No half of a secret is left where a long record was shortened."""
    for before in range(32_740, 32_790, 7):
        message = "x" * before + f" redis://u:{SECRET * 3}@h/0 "
        record = told({"password": SECRET, "large": "y" * size}, message.ljust(size))
        assert SECRET[:4] not in str(record)
        assert record["metadata"]["password"] == GONE


def test_the_size_before_is_told() -> None:
    """A shortened record tells its size before, whatever was taken out of it."""
    assert told({}, "x" * 1_000_000)["metadata"]["truncated"] >= 1_000_000


def test_what_lies_too_deep_is_left_out() -> None:
    """Levels that nobody looks at do not leave: safe, and no stack is exhausted."""
    tree: object = {"password": SECRET}
    for _ in range(240):
        tree = [tree]
    record = told({"password": 1, "deep": tree, "n": 1})
    assert SECRET not in str(record)
    assert "<too deep>" in str(record)
    assert record["metadata"]["n"] == 1


def test_outcomes_leave_without_secrets() -> None:
    """Result, error and the first bytes of a bad message are looked at."""
    stream = LogStream(lambda: 0.0, max_records=10, max_bytes=1_000_000)
    error = {
        "type": "E",
        "message": f"token={SECRET}",
        "firstBytes": f'"pin":"{SECRET}',
    }
    for kind, result in ((OutcomeKind.SUCCEEDED, {"token": SECRET}), (OutcomeKind.FAILED, None)):  # fmt: skip
        stream.report(
            Outcome(kind=kind, command="a", command_id="1", result=result, error=error)
        )
    records = stream.delivery.buffer.take(10, 1_000_000)
    assert len(records) == 2
    assert all(SECRET.encode() not in record.payload for record in records)
    assert not stream.failures


# --- errors

ERRORS: dict[str, BlsError] = {
    "value": ConfigurationError("settings", {"password": SECRET}, "no"),
    "URL": ConfigurationError("x", f"redis://u:{SECRET}@h", "no"),
    "bytes": ConfigurationError("x", f"redis://u:{SECRET}@h".encode(), "no"),
    "payload": DecodeError("not_json", f'{{"password":"{SECRET}'.encode()),
    "reason": RedisUnavailableError("auth", f"unknown user, password={SECRET}"),
    "argument": ArgumentError("a", {"password": f"Value error, {SECRET} is short"}),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=list(ERRORS))
def test_errors_hold_no_secret(error: BlsError) -> None:
    """What an error shows of a foreign value was looked at before."""
    assert SECRET not in f"{error} {error!r} {error.args}"
    assert GONE in str(error) or "***" in str(error)


# --- whatever comes

fragments = st.sampled_from(
    [*'=:："\'\\{}[](),;&?/@#-_.…\n <>!*1a茶', "password", "token", "max_tokens", "密码",
     "://", "http://", "redis://", "pin", "auth", '\\"', "\\n", "\\u5bc6", "\\xe5", "sk-",
     "ghp_", "eyJ", "AKIA", "-----BEGIN PRIVATE KEY-----", "</", "input_value=", "null",
     ", input_type=", "Value error, ", "cookie", "Authorization", "Bearer ", "api key",
     "('", "',", "name", "value", "type", "<![CDATA[", "]]>", "|\n", "\n  ", "' + '", "%3A%2F%2F",
     "%40", "%3D", "%3a", wide("pin"), "***", GONE, '"""', 'b"', " --", "none", ":8080", "\ud800"]
)  # fmt: skip
texts = st.text() | st.lists(fragments, max_size=14).map("".join)


@given(texts)
def test_the_quick_look_misses_nothing(text: str) -> None:
    """A text is let through at once only if the closer look would change nothing."""
    fresh = Redactor(OWN_NAMES)
    assume(len(text) >= 14)  # shorter ones hold no shape
    judge = fresh._names.judge
    assert fresh.text(text) == fresh.text(text) == redact_text(text, judge)


secret_names = st.sampled_from(SECRET_NAMES)
names = secret_names | st.sampled_from(
    [*HARMLESS_NAMES, *COUNTING_NAMES, "员工号", "ssn", "name", "key", "value"]
)
numbers = st.integers(0, 99) | st.floats(0, 1)
leaves = st.none() | st.booleans() | numbers | texts | secret_names
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(names | texts, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(names | texts, trees, max_size=4))
def test_a_quick_look_at_metadata_misses_nothing(metadata: dict[str, object]) -> None:
    """What is encoded without a closer look is what a closer look would leave."""
    payload = encode(metadata)
    plain = orjson.loads(payload)
    kept = Redactor(OWN_NAMES).tree(plain)
    assert kept == plain or Redactor(OWN_NAMES).suspects(payload)
    assert told(metadata, redactor=Redactor(OWN_NAMES)).get("metadata", {}) == kept


secrets_of_any_letters = st.text(
    st.characters(codec="ascii", exclude_characters="\"'\\<", categories=["L", "N", "P", "S"]),
    min_size=6,
).filter(lambda text: any(map(str.isalpha, text)) and len(set(text)) > 3)  # fmt: skip


@given(
    secrets_of_any_letters,
    st.sampled_from(
        ['{{"password": "{}"}}', "token='{}'", 'x {{"a": "b", "密码":"{}', "--pin '{}' x",
         '{{\\"api_key\\": \\"{}\\"}}', "Cookie: {}", "redis://u:p{}@h/0", "Authorization: {}"]
    ),
)  # fmt: skip
def test_no_letter_of_a_secret_matters(secret: str, place: str) -> None:
    """Whatever a quoted secret, a header or a URL's password is made of, it goes."""
    assume(not is_kept(secret, Verdict.SECRET) and "***" not in secret)
    assert secret not in redactor.text(place.format(secret))


ADVERSARIES = [
    *("password", "=", ":", "\\", '"', "'", "{", "(", " ", "a", "-", "@", "…", "eyJ-"),
    *("a.", "a=", "://", "://a:b", "a://b@", ":\\/\\/", "x@y ", "password=", 'pin:{"'),
    *("token=a,", "token=a)", "token=(", "sk-", "ghp_", "AKIA", "api key:", "--pin "),
    *("-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "<a>", "<a ", "</", "input_value="),
    *("\n  input_value=a...", "Value error, ", "'pin' Value error, ", "cookie:", "密码："),
    *("('pin',", "('", "name=pin value=", "<pin><![CDATA[", "]]>", "pin:\n ", "pin: |\n  ", "\n  x"),
    *("'+'", "pin='a'+'", "%3A%2F%2F", "%3A%2F%2Fa%3Ab", "%40", "pin%3D", wide("pin=")),
    *("Bearer ", "Basic a", "@password:{", "://a@pin:{", "\\x41=", "\\u5bc6", '"pin":', "\\n"),
]  # fmt: skip
LENGTH = 65_536
PATIENCE = 2.0  # seconds of the processor; about 0.1 is usual for 64 KB that hold a secret in each word


def take_time(text: str) -> float:
    """Measure one look with caches that know nothing yet."""
    fresh = Redactor()
    began = time.thread_time()
    fresh.text(text)
    return time.thread_time() - began


@pytest.mark.parametrize("unit", ADVERSARIES)
def test_no_text_takes_long(unit: str) -> None:
    """64 KB are read in linear time, also when they were made to be slow."""
    text = (unit * (LENGTH // len(unit) + 1))[: LENGTH - 40]
    for around in ("", " password=x redis://a:b@"):
        assert take_time(around + text + around) < PATIENCE


@settings(max_examples=20)
@given(st.lists(st.sampled_from(ADVERSARIES), min_size=2, max_size=4).map("".join))
def test_no_mixture_takes_long(unit: str) -> None:
    """Nor do pieces that make each other slow."""
    assert take_time((unit * (LENGTH // len(unit) + 1))[:LENGTH]) < PATIENCE


def test_memory_is_bounded() -> None:
    """What is remembered of names and texts does not grow with what is logged."""
    fresh = Redactor()
    for number in range(20_000):
        fresh.tree({f"field {number}": f"text number {number} of many"})
    verdicts = fresh._names._remembered.cache_info().currsize
    assert 0 < max(len(fresh._harmless), verdicts) <= 2_048
    fresh.text("long and harmless " * 100)
    assert max(map(len, fresh._harmless)) <= 128


def test_the_module_function_knows_the_usual_names() -> None:
    """Errors are redacted with the built-in names."""
    assert redact(f"pin: {SECRET}") == f"pin: {GONE}"


def test_a_chain_of_exceptions_leaves_without_secrets() -> None:
    """Type, message and traceback of all that led to it are looked at."""
    stream = LogStream(lambda: 0.0, max_records=10, max_bytes=1_000_000)
    from bls_agent.project.log.log import Log  # noqa: PLC0415 - beside its use

    Log(stream).exception("failed", exception=chained())
    (record,) = stream.delivery.buffer.take(10, 1_000_000)
    exception = orjson.loads(record.payload)["metadata"]["exception"]
    assert exception["message"] == "redis://***@h"
    assert f"token={GONE}" in exception["traceback"]
    assert SECRET not in record.payload.decode()
