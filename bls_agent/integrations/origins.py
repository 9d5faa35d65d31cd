"""Which pages of other origins may read; none unless they are named."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from bls_agent.core.errors import ConfigurationError

__all__ = ["allow"]


def allow(allow_origins: Sequence[str]) -> list[Middleware]:
    """Let pages of these origins read, with their cookies; ``*`` for all, without.

    Raises:
        ConfigurationError: One of them is no origin.
    """
    if isinstance(allow_origins, str):
        rule, remedy = "it is a list of origins", f"Pass [{allow_origins!r}]."
        raise ConfigurationError("allow_origins", allow_origins, rule, remedy)
    for origin in allow_origins:
        scheme, _, rest = origin.partition("://")
        if origin != "*" and (not scheme or not rest or "/" in rest or "*" in rest):
            rule = "an origin is 'https://page.example', without a path, or '*'"
            raise ConfigurationError("allow_origins", origin, rule)
    if not allow_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=allow_origins,
            allow_methods=["GET"],
            allow_headers=["Cache-Control", "Last-Event-ID"],
            allow_credentials="*" not in allow_origins,
        )
    ]
