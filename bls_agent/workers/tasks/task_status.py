"""How the tasks of a fleet are: ``ginkgo:task_status:{task_id}`` (contract 001)."""

from __future__ import annotations

from typing import Any, ClassVar

from bls_agent.workers.tasks.task_keys import TaskKeys
from bls_agent.workers.tasks.task_records import Task

__all__ = ["TaskStatus"]


class TaskStatus(TaskKeys):
    """Says how a task is, and reads what others say; each word lives for a day.

    Works with and without ``async with``, in any event loop; close it with
    :meth:`aclose` when it was used without. Reading never gives "nothing" for "Redis is
    away": it raises :class:`~bls_agent.RedisUnavailableError`.

    What is written is a JSON object: ``task_id``, ``status``, ``timestamp`` with its
    zone, then fields of your own; see :class:`Task`.
    """

    kind: ClassVar[str] = "task_status"

    async def set(self, task_id: str, status: str, **fields: Any) -> Task:
        """Say how a task is, whatever was said before; it counts for a day from now.

        Args:
            task_id: Which task.
            status: How it is, in words of your own: ``pending``, ``running``, ``回测中``.
            fields: What else is to be said: what JSON can hold. ``progress`` is percent,
                ``message`` a text, ``timestamp`` now unless it is given.

        Raises:
            ConfigurationError: The id cannot be part of a key, or a field cannot be
                written.
            WrongTypeError: The key is no string; it was left alone.
            RedisUnavailableError: Not written; or perhaps, if ``error.ambiguous``.
        """
        return await self._put(task_id, status, fields)

    async def update(self, task_id: str, **changes: Any) -> Task | None:
        """Change some fields; all others stay, and the time it lives goes on running.

        In one step: two that change different fields at once lose neither, nor anybody
        else's.

        Args:
            task_id: Which task.
            changes: Fields and what they shall hold, ``status`` among them; the
                ``timestamp`` becomes now unless it is given.

        Returns:
            The task as it is now; ``None`` if there is no such task, or no more:
            then nothing was written.

        Raises:
            ConfigurationError: A field cannot be written.
            DecodeError: What stands there is neither an object nor a word; it was left
                alone. :meth:`set` writes over it.
            WrongTypeError: The key is no string; it was left alone.
            RedisUnavailableError: Not written; or perhaps, if ``error.ambiguous``: it
                may be done again, and then stands last. ``contended``: others were
                always ahead.
        """
        return await self._change(task_id, changes)
