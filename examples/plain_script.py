"""A plain worker loop on the console: no event loop, no async.

Shows: an agent in a thread of its own, a handler and a loop that share a value, waiting
until the first status is written, SIGTERM and Ctrl-C (both leave 离线).
Needs: ``pip install .`` and a Redis at ``BLS_REDIS_URL`` (default
redis://127.0.0.1:6379/0; ``python -m bls_agent.devserver`` starts one).
Run:   ``python examples/plain_script.py [project]``, Ctrl-C or ``kill`` ends it in
order. Talk to it from another terminal with ``python examples/follow_console.py``.
"""

from __future__ import annotations

import itertools
import signal
import sys
import time
from contextlib import suppress

from bls_agent import ProjectAgent, RedisUnavailableError, Reject

agent = ProjectAgent(sys.argv[1] if len(sys.argv) > 1 else "订单系统")
pace = 1.0  # seconds for an order


@agent.command
def set_pace(seconds: float) -> float:
    """Runs in a thread, beside the loop below; the next order shows it."""
    global pace  # noqa: PLW0603 - shared on purpose: one value, set in one step
    if seconds <= 0:
        raise Reject("nobody is that fast")
    pace = seconds
    return pace


def work() -> None:
    for number in itertools.count(1):
        time.sleep(pace)  # whatever blocks: a query, a file, a library
        agent.log.info("order shipped", order=number)


def main() -> None:
    # Without this line SIGTERM would kill the process on the spot, without 离线.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    with agent.in_thread() as thread:  # returns at once, also while Redis is away
        try:
            thread.ready(timeout=2.0)
        except RedisUnavailableError as error:
            print("working all the same:", error, file=sys.stderr)
        work()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
