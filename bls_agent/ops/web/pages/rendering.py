"""Templates, the reader's language, the static files, and the error page.

All values on a page are escaped, and an undefined value raises an error. The templates
contain no cards, because the scripts of the pages make the cards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from bls_agent.core.codec import encode
from bls_agent.ops.terminal import visible, visible_lines
from bls_agent.ops.texts import LANGUAGES, Texts, load_texts
from bls_agent.ops.web.requests import error_answer, is_data
from bls_agent.ops.web.rights import Role, may_post

if TYPE_CHECKING:
    from bls_agent.ops.web.state import WebState

LANGUAGE_TAGS: Final = {"zh": "zh-CN", "en": "en"}
MOST_RANGES: Final = 20  # languages of an Accept-Language header that are read
MINUTE: Final = 60
HOUR: Final = 3_600
DAY: Final = 86_400
_UNITS: Final = (
    (MINUTE, "seconds", 1),
    (HOUR, "minutes", MINUTE),
    (DAY, "hours", HOUR),
)
STATIC: Final = Path(__file__).parent.with_name("static")
TEMPLATES: Final = Path(__file__).with_name("templates")
THEMES: Final = ("light", "dark")
LONGEST_DETAIL: Final = 500  # characters
AGAIN: Final = 3  # seconds after which a page without Redis is loaded again
YEAR: Final = 31_536_000  # seconds


def choose_page_language(
    query: Mapping[str, str], cookies: Mapping[str, str], accepted: str, fallback: str
) -> str:
    for chosen in (query.get("lang"), cookies.get("lang")):
        if chosen in LANGUAGES:
            return chosen
    return _by_header(accepted) or fallback


def _by_header(accepted: str) -> str:
    """Return the first accepted language that we have; browsers list the best first."""
    tags = [wanted.partition(";")[0] for wanted in accepted.split(",")[:MOST_RANGES]]
    spoken = (tag.strip().lower().partition("-")[0] for tag in tags)
    return next((language for language in spoken if language in LANGUAGES), "")


def say_age(texts: Texts, seconds: float) -> str:
    """Return an age in words, the same words as in the scripts of the pages."""
    if seconds < 1:
        return texts["js_age_now"]
    for limit, unit, length in _UNITS:
        if seconds < limit:
            return texts[f"js_age_{unit}"].format(n=int(seconds // length))
    return texts["js_age_days"].format(n=int(seconds // DAY))


class CachedFiles(StaticFiles):
    """Static files that a browser caches, but checks for changes each time."""

    def file_response(self, *args: Any, **more: Any) -> Response:
        answer = super().file_response(*args, **more)
        answer.headers["cache-control"] = "no-cache"
        return answer


_WITH_HEADLINE: Final = frozenset({400, 403, 404, 405, 413, 429, 500, 503})


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
    catalogue = {
        name.removeprefix("js_"): text
        for name, text in _texts(language).items()
        if name.startswith(("js_", "kind_"))
    }
    return encode(catalogue).decode()


def _language_of(request: Request) -> str:
    state: WebState = request.app.state.web
    return choose_page_language(
        request.query_params,
        request.cookies,
        request.headers.get("accept-language", ""),
        state.config.language or "en",
    )


def texts_of(request: Request) -> Texts:
    return _texts(_language_of(request))


def render(
    request: Request,
    template: str,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **values: Any,
) -> HTMLResponse:
    page = _environment().get_template(template)
    context = _context(request)
    answer = HTMLResponse(page.render(context | values), status, headers)
    chosen, path = request.query_params.get("lang"), context["root"] or "/"
    if chosen in LANGUAGES:
        answer.set_cookie("lang", chosen, max_age=YEAR, path=path, samesite="strict")
    return answer


def render_if_new(request: Request, template: str, **values: Any) -> Response:
    """Return a part of a page, or 204 if the page already shows this version of it."""
    answer = render(request, template, **values)
    seen = hashlib.sha256(answer.body).hexdigest()[:16]
    if request.query_params.get("seen") == seen:
        return Response(status_code=204)
    mark = f'<input type="hidden" name="seen" value="{seen}">'.encode()
    return Response(bytes(answer.body) + mark, media_type="text/html")


def _context(request: Request) -> dict[str, Any]:
    language, scope = _language_of(request), request.scope
    # The prefix that a proxy removes. Below a mount, such as /static, `root_path` also
    # contains the path of the mount.
    root: str = scope.get("app_root_path", scope.get("root_path", ""))
    texts = _texts(language)
    other = next(known for known in LANGUAGES if known != language)
    state: WebState = request.app.state.web
    user, title = request.state.user, visible(state.config.title)
    # Not on the login page, because only users may see the address of Redis.
    redis = visible(state.redis) if user or not state.config.users else ""
    theme = request.cookies.get("theme", "")

    def static(file: str) -> str:
        return f"{root}/static/{file}"

    return {
        "texts": texts,
        "language_tag": LANGUAGE_TAGS[language],
        "script_texts": _script_texts(language),
        "other_language": f"?lang={other}",  # the scripts add the page's other fields
        "theme": theme if theme in THEMES else "",
        "root": root,
        "here": "",
        "age": partial(say_age, texts),
        "static": static,
        "user": user,
        "may_post": partial(may_post, request),
        "sees_all": request.state.grants.everywhere >= Role.VIEWER,
        "title": title,
        "redis": redis,
        "site": " · ".join(filter(None, (title or texts["title"], redis))),
    }


def error_page(
    request: Request,
    status: int,
    *,
    name: str = "",
    detail: str = "",
    refused: bool = False,
) -> Response:
    """Show an error with a link back; ``name`` is the project that the error is about.

    ``refused`` means that Redis answers, but refuses the request until an operator
    changes something.
    """
    texts = texts_of(request)
    headline = texts[f"error_{status}" if status in _WITH_HEADLINE else "error_other"]
    hint, again = "", 0
    if refused:
        headline = texts["error_refused"]
    elif status == HTTPStatus.SERVICE_UNAVAILABLE:
        hint, again = texts["error_503_hint"], AGAIN
    elif status == HTTPStatus.NOT_FOUND and name:
        headline, hint = texts["error_404_project"], texts["error_404_hint"]
    return render(
        request,
        "trouble.html" if "hx-request" in request.headers else "error.html",
        status,
        {"retry-after": str(again)} if again else None,
        number=status,
        headline=headline,
        hint=hint,
        name=visible(name),
        detail=visible(detail[:LONGEST_DETAIL]),
        again=again,
    )


def refuse_with(
    request: Request,
    status: int,
    reason: str,
    *,
    shown: str | None = None,
    fields: Mapping[str, str] | None = None,
    needs: str = "",
    headers: Mapping[str, str] | None = None,
    refused: bool = False,
) -> Response:
    """Return an error as JSON for a path that returns data, or as a page.

    If ``shown`` is not ``None``, the page shows ``shown`` instead of the reason.
    """
    if is_data(request):
        return error_answer(status, reason, fields=fields, needs=needs, headers=headers)
    detail = reason if shown is None else shown
    answer = error_page(request, status, detail=detail, refused=refused)
    answer.headers.update(headers or {})
    return answer
