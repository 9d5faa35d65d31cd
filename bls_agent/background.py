"""A task that stands outside of every scope of the host.

Nothing in it can cancel the host, and no exception of the host is wrapped by it. anyio
has no task without a scope, asyncio has.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - see above

__all__ = ["start_background"]


def start_background(
    function: Callable[[], Coroutine[Any, Any, None]], name: str
) -> asyncio.Task[None]:
    """Run a coroutine function in the running event loop, beside the host's tasks.

    The caller owns the task: it holds it, and waits for its end.

    Args:
        function: What to run; its exceptions stay in the task.
        name: What the task is called, for who lists a loop's tasks.
    """
    import asyncio  # noqa: PLC0415, TID251 - 20 ms, not at import

    return asyncio.get_running_loop().create_task(function(), name=name)
