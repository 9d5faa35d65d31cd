"""Files of the pages: kept for ever under a version, asked for each time without."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Final

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

__all__ = ["STATIC", "CachedFiles", "asset_version"]

STATIC: Final = Path(__file__).with_name("static")
FOR_EVER: Final = "public, max-age=31536000, immutable"


class CachedFiles(StaticFiles):
    """Files with an ETag; ``?v=…`` in the address says that they never change."""

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """Answer with a file, or that it has not changed."""
        answer = super().file_response(full_path, stat_result, scope, status_code)
        versioned = scope["query_string"].startswith(b"v=")
        answer.headers["cache-control"] = FOR_EVER if versioned else "no-cache"
        return answer


@cache
def asset_version() -> str:
    """Name the content of all files together."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            digest.update(path.relative_to(STATIC).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
