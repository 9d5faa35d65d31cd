"""How a run ended: what its last events say; no I/O here."""

from __future__ import annotations

from typing import Any, Final, cast

import anyio

from bls_agent.core.codec import JSONObject, cut_text
from bls_agent.core.redaction import redact

__all__ = ["tell_end"]

LONGEST: Final = 2_000  # bytes of what an error says


def tell_end(error: BaseException | None, result: object) -> tuple[str, object]:
    """Give the action of the ``lifecycle`` event that ends a run, and its data.

    A run that was cut short is ``cancelled``: by a cancellation, Ctrl-C, ``sys.exit()``
    or the end of the generator in which it stands.

    Args:
        error: What ended the body; ``None`` if nothing did.
        result: What a completed run says.
    """
    if error is None:
        return "completed", result
    error = _unwrap(error)
    if _cuts_short(error):
        return "cancelled", {"reason": type(error).__name__}
    return "failed", {"error": _describe(error)}


def _unwrap(error: BaseException) -> BaseException:
    """Take the one error out of the groups that task groups make of it."""
    told: Any = error
    if isinstance(told, BaseExceptionGroup) and len(cast("Any", told).exceptions) == 1:
        return _unwrap(cast("Any", told).exceptions[0])
    return error


def _cuts_short(error: BaseException) -> bool:
    if isinstance(error, SystemExit):
        return not error.code
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        return True
    return isinstance(error, anyio.get_cancelled_exc_class())


def _describe(error: BaseException) -> JSONObject:
    try:
        text = redact(str(error))
    except Exception as failure:  # noqa: BLE001 - a foreign __str__
        text = f"<its text raised {type(failure).__name__}>"
    return {"type": type(error).__name__, "message": cut_text(text, LONGEST)}
