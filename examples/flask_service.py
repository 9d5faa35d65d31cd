"""An HTTP service without an event loop: Flask.

Shows: the agent in a thread for the life of the process, a route that logs, a command
that changes what the next request sees, SIGTERM (it leaves 离线).
Needs: ``pip install . flask gunicorn`` and a Redis at ``BLS_REDIS_URL``
(default redis://127.0.0.1:6379/0; ``python -m bls_agent.devserver`` starts one).
Run:   ``python examples/flask_service.py``, or in that folder
``gunicorn --threads 8 'flask_service:create_app()'``; Ctrl-C or ``kill`` ends it in
order. The variables PROJECT and PORT name another project and port (gunicorn: ``-b``).
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack

from flask import Flask, abort

from bls_agent import ProjectAgent, Reject

agent = ProjectAgent(os.environ.get("PROJECT", "订单系统"))
app = Flask(__name__)
stack = ExitStack()
prices = {"茶": 12.5}


@app.get("/prices/<goods>")
def show_price(goods: str) -> dict[str, float]:
    if goods not in prices:
        abort(404)
    agent.log.info("price shown", goods=goods, price=prices[goods])  # never waits
    return {"price": prices[goods]}


@agent.command
def set_price(goods: str, price: float) -> dict[str, float | None]:
    """Runs in a thread, beside those of the requests."""
    if price <= 0:
        raise Reject("nothing is free", {"price": price})
    before, prices[goods] = prices.get(goods), price
    return {"before": before}


def create_app() -> Flask:
    """Called in the process that serves; who only imports ``app`` starts no agent."""
    stack.enter_context(agent.in_thread())  # the interpreter's exit would close it, too
    return app


if __name__ == "__main__":
    # Without this line SIGTERM would kill the process on the spot, without 离线.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    with stack:
        create_app().run(port=int(os.environ.get("PORT", "5000")))
