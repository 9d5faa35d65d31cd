"""The local console: pages for people, and an HTTP interface for programs.

``bls-agent console`` runs the console (extra ``web``). To mount it in your own server,
pass a :class:`~bls_agent.ops.web.config.WebConfig` to
:func:`bls_agent.ops.web.app.create_app`.
"""

from __future__ import annotations

import importlib.util

from bls_agent.core.errors import MissingExtraError


def need_web() -> None:
    """Raise ``MissingExtraError`` unless the extra ``web`` is installed."""
    for library in ("starlette", "uvicorn", "sse_starlette", "jinja2", "argon2"):
        if importlib.util.find_spec(library) is None:
            raise MissingExtraError("web", "the console in the browser")
