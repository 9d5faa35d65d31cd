"""Several workers that gunicorn forks from a program that is loaded already.

Shows: an agent that is made in the master, where it stays closed; each worker opens its
own copy. The workers are replicas of one project: they share its status and its
commands. Each command runs in one of them. Each worker has an instance name with its pid,
and numbers its own log records without a gap. The last worker that ends writes 离线.
Needs: ``pip install . gunicorn`` and a Redis at ``BLS_REDIS_URL`` (default
redis://127.0.0.1:6379/0; ``python -m bls_agent.devserver`` starts one). No Windows.
Run:   ``gunicorn -c python:gunicorn_preload`` in the folder of
``examples/gunicorn_preload.py``, which is program and configuration at once: with
``python:`` gunicorn imports it, ``-c gunicorn_preload.py`` would run it twice and make
two agents. Ctrl-C or ``kill`` ends it. The variable PROJECT names another project.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from wsgiref.types import StartResponse, WSGIEnvironment

from bls_agent import ProjectAgent

wsgi_app = "gunicorn_preload:app"
preload_app = True
workers = 4

agent = ProjectAgent(os.environ.get("PROJECT", "订单系统"), replicas=True)
stack = ExitStack()


def post_worker_init(worker: object) -> None:
    """In the worker, when its signals are in place; not in ``post_fork``."""
    stack.enter_context(agent.in_thread())
    agent.log.info("worker started", pid=os.getpid(), worker=str(worker))


def worker_exit(_server: object, _worker: object) -> None:
    """In the worker: running handlers get their time, the log is flushed."""
    stack.close()


@agent.command
def whoami() -> int:
    return os.getpid()


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    agent.log.info("request", path=environ["PATH_INFO"], pid=os.getpid())
    start_response("200 OK", [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{os.getpid()}\n".encode()]
