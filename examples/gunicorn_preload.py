"""Several workers that gunicorn forks from a program that is loaded already.

Shows: an agent that is made in the master, where it stays closed; each worker opens its
own copy. The workers are one project: they share its status and its commands. A command
goes to one of them. Each has an instance id of its own, which holds its pid, so that
the numbers of its log records have no gap. The last word of each is 离线; one that ends
before the others is corrected by their next refresh.
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

agent = ProjectAgent(os.environ.get("PROJECT", "订单系统"))
life = ExitStack()


def post_worker_init(worker: object) -> None:
    """In the worker, when its signals are in place; not in ``post_fork``."""
    life.enter_context(agent.in_thread())
    agent.log.info("worker started", pid=os.getpid(), worker=str(worker))


def worker_exit(_server: object, _worker: object) -> None:
    """In the worker: running handlers get their time, the log is flushed."""
    life.close()


@agent.command
def whoami() -> int:
    return os.getpid()


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    agent.log.info("request", path=environ["PATH_INFO"], pid=os.getpid())
    start_response("200 OK", [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{os.getpid()}\n".encode()]
