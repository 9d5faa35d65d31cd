"""``docs/monitoring/``: dashboards and alerts fit the code, and a real Prometheus."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2 as httpx
import orjson
import pytest
from prometheus_client import CollectorRegistry, start_http_server
from ruamel.yaml import YAML

from bls_agent import Console, ProjectAgent
from bls_agent.devserver import DevServer
from bls_agent.integrations import prometheus
from bls_agent.ops.web import metrics
from bls_agent.ops.web.auth import parse_users, token_line
from bls_agent.ops.web.config import WebConfig
from docs.monitoring import dashboards
from tests.engines import free_ports
from tests.harness import eventually
from tests.ops.web.serving import served

DOCS = Path(__file__).parents[1] / "docs"
FILES = DOCS / "monitoring"
PAGES = ("monitoring.md", "monitoring.zh-CN.md")
ALERTS = FILES / "bls-alerts.yml"
# Prometheus adds these labels, and the label of a bucket.
ADDED = {"job", "instance", "le"}
ENDED = 'bls_commands_total{command="盘点",outcome="succeeded"}'
needs_prometheus = pytest.mark.skipif(
    not shutil.which("prometheus") or not shutil.which("promtool"),
    reason="Debian's package prometheus is not installed",
)


def load(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text("utf-8"))


def rules() -> list[Any]:
    return [rule for group in load(ALERTS)["groups"] for rule in group["rules"]]


def queries() -> list[str]:
    """Every query of the dashboard and of the alerts."""
    panels = (query for panel in dashboards.PANELS for query, _ in panel.queries)
    return [*panels, *(rule["expr"] for rule in rules())]


def known_series() -> dict[str, set[str]]:
    """Name of each series of the console and of services → its labels."""
    known = {one.name: {*one.labels} for one in metrics.FAMILIES}
    for family in prometheus.FAMILIES.values():
        ends = ("_bucket", "_count", "_sum") if family.kind == "histogram" else ("",)
        known |= {family.name + end: {*family.labels} for end in ends}
    return known


@pytest.mark.parametrize("language", dashboards.LANGUAGES)
def test_the_dashboards_are_those_of_the_table(language: str) -> None:
    """A change of the table was written; both languages have the same queries."""
    written = (FILES / f"bls-fleet.{language}.json").read_text("utf-8")
    assert written == dashboards.write_dashboard(language)
    shown = {panel["title"] for panel in orjson.loads(written)["panels"]}
    place = dashboards.LANGUAGES.index(language)
    assert shown == {panel.titles[place] for panel in dashboards.PANELS}


@pytest.mark.parametrize("query", queries())
def test_every_metric_of_a_query_exists(query: str) -> None:
    """With the labels by which the query selects and groups."""
    known, named = known_series(), re.findall(r"\bbls_\w+", query)
    assert named
    assert {*named} <= known.keys()
    grouped = re.findall(r"(?:by|on) \(([\w, ]+)\)", query)
    labels = {label for part in grouped for label in part.split(", ")}
    labels |= {*re.findall(r"[{,](\w+)=", query)}
    assert labels <= ADDED.union(*(known[name] for name in named))


def test_every_alert_is_written_in_both_languages_and_tested() -> None:
    """And both pages say what to do on it."""
    tested = (FILES / "bls-alerts.test.yml").read_text("utf-8")
    for rule in rules():
        texts = rule["annotations"]
        assert {*texts} == {
            f"{name}{language}"
            for name in ("summary", "description")
            for language in ("", "_zh")
        }
        firing = f'alertname="{rule["alert"]}"}}\', value: 1'
        assert firing in tested, rule["alert"]
        for page in PAGES:
            assert f"| `{rule['alert']}` |" in (DOCS / page).read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_list_every_metric_of_the_console(page: str) -> None:
    """With its labels, and none that does not exist."""
    rows = dict(
        re.findall(
            r"^\| `(bls_\w+?)(?:\{([\w,]+)\})?` \|",
            (DOCS / page).read_text("utf-8"),
            re.MULTILINE,
        )
    )
    listed = {name: {*filter(None, labels.split(","))} for name, labels in rows.items()}
    own = {one.name: {*one.labels} for one in metrics.FAMILIES}
    assert {name: listed.get(name) for name in own} == own
    assert listed.keys() <= own.keys() | prometheus.FAMILIES.keys()


@needs_prometheus
def test_promtool_accepts_the_files() -> None:
    """The configuration, the rules, and the unit tests of the rules."""
    for words in (
        ("check", "config", "--syntax-only", "prometheus.yml"),
        ("check", "rules", "bls-alerts.yml"),
        ("test", "rules", "bls-alerts.test.yml"),
    ):
        ran = subprocess.run(
            ["promtool", *words], cwd=FILES, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


@asynccontextmanager
async def prometheus_of(
    folder: Path, **targets: int
) -> AsyncIterator[httpx.AsyncClient]:
    """Run Prometheus with the files of the documents and these ports; ask it."""
    shutil.copy(ALERTS, folder)
    text = (FILES / "prometheus.yml").read_text("utf-8")
    for place, port in targets.items():
        text = text.replace({"console": "127.0.0.1:8765", "service": "127.0.0.1:9464"}[place], f"127.0.0.1:{port}")  # fmt: skip
    text = text.replace(": 15s", ": 1s").replace("    # authorization:\n    #   ", "    authorization:\n      ")  # fmt: skip
    (folder / "prometheus.yml").write_text(text, "utf-8")
    port = free_ports(1)[0]
    words = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with (folder / "log").open("w") as log:
        process = await anyio.open_process(
            ["prometheus", *words], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            await eventually(lambda: is_ready(client))
            yield client
    finally:
        process.kill()
        await process.wait()


async def is_ready(client: httpx.AsyncClient) -> bool:
    with suppress(httpx.TransportError):
        return (await client.get("/-/ready")).status_code == 200
    return False


async def ask(client: httpx.AsyncClient, query: str) -> dict[str, float]:
    """The project (or nothing) of each series of a query → its value."""
    answer = await client.get("/api/v1/query", params={"query": query})
    assert answer.status_code == 200, (query, answer.text)
    return {
        one["metric"].get("project", ""): float(one["value"][1])
        for one in answer.json()["data"]["result"]
    }


@needs_prometheus
async def test_a_real_prometheus_has_the_fleet_and_the_service(
    own_server: DevServer, tmp_path: Path, project: str
) -> None:
    """It scrapes a console by its token, and a service; the rules and queries work."""
    agent = ProjectAgent(project, redis=own_server.url)

    @agent.command
    async def 盘点() -> int:
        return 42

    registry = CollectorRegistry()
    registry.register(prometheus.AgentCollector(agent))
    exporter, thread = start_http_server(0, "127.0.0.1", registry)
    users = parse_users(token_line("prometheus", "t" * 43, "viewer"))
    (tmp_path / "scrape-token").write_text("t" * 43)
    try:
        with served(WebConfig(redis=own_server.url, port=0, users=users)) as console:
            async with (
                agent,
                Console(own_server.url) as sender,
                prometheus_of(
                    tmp_path, console=console.port, service=exporter.server_port
                ) as client,
            ):
                await sender.call(project, "盘点", timeout=10)

                async def knows_both() -> bool:
                    fleet = await ask(client, 'bls_project_status{status="online"}')
                    ran = await ask(client, ENDED)
                    return (fleet.get(project), ran.get(project)) == (1, 1)

                await eventually(knows_both)
                for query in queries():
                    await ask(client, query.replace("$project", ".*"))
                loaded = (await client.get("/api/v1/rules")).json()["data"]["groups"]
                found = (await client.get("/api/v1/targets")).json()["data"]
    finally:
        exporter.shutdown()
        exporter.server_close()
        thread.join(5)
    names = {rule["name"] for group in loaded for rule in group["rules"]}
    assert names == {rule["alert"] for rule in rules()}
    health = {one["labels"]["job"]: one["health"] for one in found["activeTargets"]}
    assert health == {"bls-console": "up", "bls-services": "up"}
