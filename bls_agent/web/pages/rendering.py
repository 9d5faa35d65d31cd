"""Templates: everything that stands on a page is escaped, nothing is left undefined."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.lowlevel
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from bls_agent.codec import encode
from bls_agent.terminal import visible, visible_lines
from bls_agent.texts import LANGUAGES, Texts, load_texts
from bls_agent.web.pages.language import (
    LANGUAGE_TAGS,
    choose_page_language,
    in_other_language,
)
from bls_agent.web.pages.words import Words
from bls_agent.web.static import asset_version

if TYPE_CHECKING:
    from bls_agent.web.state import WebState

__all__ = ["language_of", "render", "render_if_new", "render_large", "texts_of"]

TEMPLATES: Final = Path(__file__).with_name("templates")
THEMES: Final = ("light", "dark")
YEAR: Final = 31_536_000  # seconds
SLICE: Final = 25  # pieces of a page without letting others run


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["visible"] = visible
    environment.filters["visible_lines"] = visible_lines
    return environment


@cache
def _texts(language: str) -> Texts:
    return load_texts("web", language)


@cache
def _script_texts(language: str) -> str:
    told = {
        name.removeprefix("js_"): text
        for name, text in _texts(language).items()
        if name.startswith("js_")
    }
    kinds = {
        name: text
        for name, text in _texts(language).items()
        if name.startswith("kind_")
    }
    return encode(told | kinds).decode()


def language_of(request: Request) -> str:
    """Choose the language of an answer."""
    fallback = getattr(getattr(request.app.state, "web", None), "config", None)
    return choose_page_language(
        request.query_params,
        request.cookies,
        request.headers.get("accept-language", ""),
        getattr(fallback, "language", "") or "en",
    )


def texts_of(request: Request) -> Texts:
    """Give the catalogue in the language of an answer."""
    return _texts(language_of(request))


def render(
    request: Request,
    template: str,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **values: Any,
) -> HTMLResponse:
    """Fill a template and answer with it.

    Args:
        request: Whose language, theme and place behind a proxy count.
        template: Its file.
        status: HTTP status.
        headers: More headers.
        values: What the template names, besides what every page has.
    """
    page = _environment().get_template(template)
    text = page.render(_context(request) | values)
    return _answer(request, text, status, headers)


def render_if_new(request: Request, template: str, **values: Any) -> Response:
    """Give a part of a page, or 204 if the page shows it already: it says what it has."""
    answer = render(request, template, **values)
    seen = hashlib.sha256(answer.body).hexdigest()[:16]
    if request.query_params.get("seen") == seen:
        return Response(status_code=204)
    mark = f'<input type="hidden" name="seen" value="{seen}">'.encode()
    return Response(bytes(answer.body) + mark, media_type="text/html")


async def render_large(request: Request, template: str, **values: Any) -> HTMLResponse:
    """Fill a template with very much, and let others run in between."""
    page = _environment().get_template(template)
    pieces: list[str] = []
    for number, piece in enumerate(page.generate(_context(request) | values), 1):
        pieces.append(piece)
        if number % SLICE == 0:
            await anyio.lowlevel.checkpoint()
    return _answer(request, "".join(pieces))


def _context(request: Request) -> dict[str, Any]:
    """Give what every page has."""
    language = language_of(request)
    texts = _texts(language)
    root = _root_of(request)
    title, redis = _place_of(request)
    theme = request.cookies.get("theme", "")
    return {
        "texts": texts,
        "language_tag": LANGUAGE_TAGS[language],
        "script_texts": _script_texts(language),
        "other_language": _other_language(request, language),
        "theme": theme if theme in THEMES else "",
        "root": root,
        "here": "",
        "words": Words(texts=texts, root=root),
        "static": partial(_address_of, root),
        "user": getattr(request.state, "user", ""),
        "title": title,
        "redis": redis,
        "site": " · ".join(filter(None, (title or texts["title"], redis))),
        "may_log_out": bool(getattr(request.state, "user", "")),
    }


def _place_of(request: Request) -> tuple[str, str]:
    """Say what this console is called, and which Redis it is about.

    The address is for those who may use the console: nobody learns it at the login.
    """
    state: WebState | None = getattr(request.app.state, "web", None)
    if state is None:
        return "", ""
    known = not state.config.users or bool(getattr(request.state, "user", ""))
    return visible(state.config.title), visible(state.redis) if known else ""


def _answer(
    request: Request,
    text: str,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> HTMLResponse:
    answer = HTMLResponse(text, status, dict(headers or {}))
    language, root = language_of(request), _root_of(request)
    if request.query_params.get("lang") in LANGUAGES:
        answer.set_cookie(
            "lang", language, max_age=YEAR, path=root or "/", samesite="strict"
        )
    return answer


def _root_of(request: Request) -> str:
    """Give what a proxy cuts off; ``root_path`` names the files' folder among them."""
    scope = request.scope
    root: str = scope.get("app_root_path", scope.get("root_path", ""))
    return root


def _address_of(root: str, file: str) -> str:
    """Give the address of a file of the pages, which may be kept for ever."""
    return f"{root}/static/{file}?v={asset_version()}"


def _other_language(request: Request, language: str) -> str:
    other = next(known for known in LANGUAGES if known != language)
    query = request.scope.get("query_string", b"").decode("ascii", "replace")
    return in_other_language(query, other)
