"""What a person sees who has configured no logging: what is wrong, and that all is well."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from bls_agent.devserver import DevServer
from tests.programs import Ended, run_python

AWAY = "redis://u:geheim@127.0.0.1:1/0"
BLOCK = """
    async with agent:
        await told()
"""
RUN = """
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(agent.run{}))
        await told()
        tasks.cancel_scope.cancel()
"""
IN_THREAD = """
with agent.in_thread():
    anyio.run(told)
"""
HOST = """
    app = Starlette(lifespan=agent.lifespan)
    server = uvicorn.Server(uvicorn.Config(app, port=0))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        await told()
        server.should_exit = True
"""
ONLY_SHIPS = """
    logging.basicConfig(level=logging.INFO, handlers=[BLSHandler(agent)])
    async with agent:
        await told()
"""
CONFIGURED = """
    logging.basicConfig(format="mine: %(message)s", stream=sys.stdout)
"""
UNAVAILABLE = "Redis at redis://127.0.0.1:1/0 is unavailable"
REMEDY = "Is it running there? redis= or BLS_REDIS_URL says where it is."
START = "订单系统: {}, mode auto"
WELL = "订单系统: connected, the status is 在线"
STOPPED = "订单系统: stopped, the status is 离线"


TOLD = """
async def told():
    while not (agent.stats().reconnect_failures or agent.stats().status_writes):
        await anyio.sleep(0.01)
    await anyio.sleep(0.05)
"""


def run_program(body: str, url: str, **environ: str) -> Ended:
    """Run a program that opens an agent, in an interpreter of its own."""
    text = f"async def main():\n{indent(dedent(body), ' ')}\nanyio.run(main)"
    head = "import anyio, logging, sys\nfrom functools import partial\nfrom bls_agent import BLSHandler, ProjectAgent\n"
    if "Starlette" in body:
        head += "import uvicorn\nfrom starlette.applications import Starlette\n"
    agent = f"agent = ProjectAgent('订单系统', redis={url!r}, shutdown_timeout=0.1)\n"
    code = head + agent + TOLD + (body if body is IN_THREAD else text)
    ended = run_python("-c", code, env=environ)
    assert ended.code == 0
    return ended


@pytest.mark.parametrize(
    "body", [BLOCK, IN_THREAD, HOST, ONLY_SHIPS],
    ids=["block", "thread", "uvicorn", "ships-only"],
)  # fmt: skip
def test_redis_away_is_said_with_the_remedy(body: str) -> None:
    """Once, on standard error, without the password; whoever has configured nothing."""
    said = run_program(body, AWAY).err
    assert UNAVAILABLE in said
    assert said.count(REMEDY) == 1
    assert "geheim" not in said


@pytest.mark.parametrize(
    ("arguments", "environ", "lines"),
    [
        ("", {}, [START, WELL, STOPPED]),
        (", banner=False", {}, []),
        ("", {"BLS_BANNER": "0"}, []),
    ],
    ids=["shown", "argument", "variable"],
)
def test_all_is_well(
    own_server: DevServer, arguments: str, environ: dict[str, str], lines: list[str]
) -> None:
    """A program that is an agent logs where Redis is, that its status stands there, and its end."""
    ran = run_program(RUN.format(arguments), own_server.url, **environ)
    assert ran.err.splitlines() == [line.format(own_server.url) for line in lines]


def test_a_host_that_has_configured_logging_gets_all_of_it() -> None:
    """And nothing beside it, in its own form."""
    ran = run_program(CONFIGURED + RUN.format(""), AWAY)
    assert ran.err == ""
    assert ran.out.startswith(f"mine: {UNAVAILABLE}")
