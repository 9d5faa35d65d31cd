"""Writes the Grafana dashboards ``bls-fleet.en.json`` and ``bls-fleet.zh.json``.

Both have the same panels and queries; this table is their only source. Run it after a
change: ``python docs/monitoring/dashboards.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from bls_agent.core.codec import encode

HERE: Final = Path(__file__).parent
LANGUAGES: Final = ("en", "zh")
STATES: Final = {  # the worst first; also the order of the values in the timeline
    "fault": ("fault", "故障", "red"),
    "error": ("error", "报错", "orange"),
    "odd": ("not a status", "状态无效", "purple"),
    "stale": ("gone", "失联", "dark-red"),
    "offline": ("offline", "离线", "#808080"),
    "online": ("online", "在线", "green"),
}
OF_PROJECT: Final = 'project=~"$project"'
TIMELINE: Final = "max by (project) ({})".format(
    " or ".join(
        f'(bls_project_status{{{OF_PROJECT},status="{state}"}} == 1) * {value}'
        for value, state in enumerate(STATES, 1)
    )
)


class Panel(NamedTuple):
    """One panel; without queries, a row that begins a section."""

    titles: tuple[str, str]  # in the order of LANGUAGES
    queries: tuple[tuple[str, str], ...] = ()  # expression and legend
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 8  # of 24 columns
    bad: float | None = None  # a figure from which a stat is red


def quantile(metric: str, by: str) -> str:
    """Write the query for the 95th percentile of a histogram."""
    rate = f"rate({metric}_bucket{{{OF_PROJECT}}}[5m])"
    return f"histogram_quantile(0.95, sum by (le, {by}) ({rate}))"


# fmt: off
PANELS: Final = (
    Panel(("Fleet", "舰队")),
    Panel(("Redis answers", "Redis 正常"), (("min(bls_console_redis_up)", ""),), "stat", width=4),
    Panel(("Projects up", "在线项目"), (("sum(bls_project_up)", ""),), "stat", width=4),
    Panel(("故障", "故障"), (('sum(bls_project_status{status="fault"})', ""),), "stat", width=4, bad=1),
    Panel(("Gone", "失联"), (('sum(bls_project_status{status="stale"})', ""),), "stat", width=4, bad=1),
    Panel(("Dead letters", "死信"), (("sum(bls_dead_letters)", ""),), "stat", width=4, bad=1),
    Panel(("Ill workers", "异常工作进程"), (("sum(bls_worker_up == bool 0)", ""),), "stat", width=4, bad=1),
    Panel(("Status", "状态"), ((TIMELINE, "{{project}}"),), "state-timeline", width=24),
    Panel(("Waiting commands", "等待的命令"), ((f"bls_project_queue_length{{{OF_PROJECT}}}", "{{project}}"),)),
    Panel(("Age of the oldest command", "最早命令的等待时间"), ((f"bls_project_queue_age_seconds{{{OF_PROJECT}}}", "{{project}}"),), unit="s"),
    Panel(("Errors in 5 minutes", "5 分钟内的错误"), ((f"increase(bls_project_errors_total{{{OF_PROJECT}}}[5m])", "{{project}}"),)),
    Panel(("Services (extra prometheus)", "服务（扩展 prometheus）")),
    Panel(("Commands per second", "每秒命令数"), ((f"sum by (project, outcome) (rate(bls_commands_total{{{OF_PROJECT}}}[5m]))", "{{project}} {{outcome}}"),)),
    Panel(("Duration, 95 %", "执行时间，95 %"), ((quantile("bls_command_duration_seconds", "project, command"), "{{project}} {{command}}"),), unit="s"),
    Panel(("Wait before the start, 95 %", "开始前的等待，95 %"), ((quantile("bls_command_wait_seconds", "project"), "{{project}}"),), unit="s"),
    Panel(("Running commands", "正在执行的命令"), ((f"sum by (project) (bls_commands_running{{{OF_PROJECT}}})", "{{project}}"),)),
    Panel(("Dropped log records in 5 minutes", "5 分钟内丢弃的日志"), ((f"sum by (project, reason) (increase(bls_log_dropped_total{{{OF_PROJECT}}}[5m]))", "{{project}} {{reason}}"),)),
    Panel(("Stalls and failed reconnects in 5 minutes", "5 分钟内的卡顿与重连失败"), (
        (f"sum by (project) (increase(bls_event_loop_stalls_total{{{OF_PROJECT}}}[5m]))", "{{project}} stalls"),
        (f"sum by (project) (increase(bls_reconnect_failures_total{{{OF_PROJECT}}}[5m]))", "{{project}} reconnects"),
    )),
    Panel(("Workers, runs, crawls, assets", "工作进程、运行、抓取、资产")),
    Panel(("Workers", "工作进程"), (("sum by (kind) (bls_worker_up)", "{{kind}}"),)),
    Panel(("Tasks", "任务"), (("sum by (state) (bls_tasks)", "{{state}}"),)),
    Panel(("Runs", "运行"), (("sum by (state) (bls_runs)", "{{state}}"),)),
    Panel(("Crawl queues", "抓取队列"), (("sum by (project, spider, state) (bls_crawl_queue_length)", "{{project}} {{spider}} {{state}}"),)),
    Panel(("Crawled per second", "每秒抓取"), (("sum by (project, spider, event) (rate(bls_crawl_requests_total[5m]))", "{{project}} {{spider}} {{event}}"),)),
    Panel(("Since the last synchronisation of assets", "距上次资产同步"), (("min(bls_asset_sync_age_seconds)", ""),), unit="s"),
    Panel(("The console itself", "控制台自身")),
    Panel(("Parts of the fleet that are read", "已读取的部分"), (("min by (part) (bls_console_part_up)", "{{part}}"),), width=12),
    Panel(("Left out, because there are too many", "因数量过多而省略"), (("sum by (part) (bls_console_left_out)", "{{part}}"),), width=12),
)
# fmt: on
SOURCE: Final = {"type": "prometheus", "uid": "${source}"}


def make_dashboard(language: str) -> dict[str, Any]:
    """Make the model of the dashboard in one language, as Grafana imports it."""
    place = LANGUAGES.index(language)
    x = y = height = 0
    panels: list[dict[str, Any]] = []
    for number, panel in enumerate(PANELS, 1):
        width = panel.width if panel.queries else 24
        if x + width > 24 or not panel.queries:  # noqa: PLR2004 - Grafana's columns
            x, y = 0, y + height
        height = {"stat": 4, "state-timeline": 9}.get(panel.kind, 8)
        height = height if panel.queries else 1
        grid = {"h": height, "w": width, "x": x, "y": y}
        head = {"id": number, "title": panel.titles[place], "gridPos": grid}
        panels.append(
            head | (_body(panel, place) if panel.queries else {"type": "row"})
        )
        x += width
    return {
        "uid": f"bls-fleet-{language}",
        "title": ("BLS fleet", "BLS 舰队")[place],
        "tags": ["bls-agent"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables(place)},
        "panels": panels,
    }


def _body(panel: Panel, place: int) -> dict[str, Any]:
    single = panel.kind == "stat"
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.kind == "state-timeline":
        defaults["mappings"] = [_mapping(place)]
    if panel.bad is not None:
        steps = [
            {"color": "green", "value": None},
            {"color": "red", "value": panel.bad},
        ]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return {
        "type": panel.kind,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend or "__auto",
                "instant": single,
                "range": not single,
            }
            for number, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _mapping(place: int) -> dict[str, Any]:
    """Name and colour the values of the timeline."""
    options = {
        str(value): {"text": texts[place], "color": texts[2], "index": value}
        for value, texts in enumerate(STATES.values(), 1)
    }
    return {"type": "value", "options": options}


def _variables(place: int) -> list[dict[str, Any]]:
    source, project = (("Data source", "数据源"), ("Project", "项目"))
    query = "label_values(bls_project_up, project)"
    return [
        {
            "name": "source",
            "label": source[place],
            "type": "datasource",
            "query": "prometheus",
        },
        {
            "name": "project",
            "label": project[place],
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": query, "refId": "projects"},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        },
    ]


def write_dashboard(language: str) -> str:
    """Write the file of the dashboard in one language, each panel on its own line."""
    model = make_dashboard(language)
    panels = ",\n".join(encode(panel).decode() for panel in model.pop("panels"))
    return f'{encode(model).decode()[:-1]},"panels":[\n{panels}\n]}}\n'


if __name__ == "__main__":
    for name in LANGUAGES:
        path = HERE / f"bls-fleet.{name}.json"
        path.write_text(write_dashboard(name), "utf-8")
