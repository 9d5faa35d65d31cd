"""Exports the counters of agents by ``prometheus_client`` (extra ``prometheus``).

The collector reads ``stats()`` when Prometheus requests the metrics. Only commands are
counted earlier: the collector adds an observer to each agent, which counts each command
when it ends.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise, product
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import finalize

import bls_agent
from bls_agent.agent import ProjectAgent
from bls_agent.connection.access import WritingStore
from bls_agent.connection.after_fork import register
from bls_agent.core.errors import ConfigurationError, MissingExtraError
from bls_agent.project.agent_state import state_of
from bls_agent.project.commands.observer import OnEnd, TakenCommand
from bls_agent.project.commands.router import Router
from bls_agent.project.messages import Outcome, OutcomeKind
from bls_agent.project.stats import AgentStats
from bls_agent.runs.store import EventStore
from bls_agent.workers.caching.cache import FunctionCache
from bls_agent.workers.heartbeat import Heartbeat

try:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
    from prometheus_client.samples import Sample
except ModuleNotFoundError:
    raise MissingExtraError("prometheus", "the collector for Prometheus") from None

__all__ = ["BUCKETS", "FAMILIES", "AgentCollector", "Family"]

BUCKETS: Final = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
UNKNOWN: Final = "_unknown"  # the label ``command`` of a command without a handler
# Outcomes that are exported as 0 before the first one, because ``rate()`` does not see
# the first value of a new series.
USUAL: Final = (
    OutcomeKind.SUCCEEDED.value,
    OutcomeKind.FAILED.value,
    OutcomeKind.TIMED_OUT.value,
    OutcomeKind.REJECTED.value,
)

Source: TypeAlias = ProjectAgent | FunctionCache | Heartbeat | WritingStore
# Metrics, values of the labels that all these metrics have, and the counters.
_Counters: TypeAlias = "tuple[Sequence[Family], tuple[str, ...], Mapping[str, Any]]"
_KINDS: Final = {"total": "counter", "info": "info", "seconds": "histogram"}


class Family(NamedTuple):
    """A metric of :class:`AgentCollector`.

    Attributes:
        name: The name in queries. Its last word determines the kind.
        help: The meaning, in one sentence.
        field: The name of the counter that is exported. The counter is a number, a
            histogram, or a mapping from the values of labels.
        labels: The names of the labels.
    """

    name: str
    help: str
    field: str
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """``counter``, ``gauge``, ``histogram`` or ``info``."""
        return _KINDS.get(self.name.rpartition("_")[2], "gauge")

    @property
    def base(self) -> str:
        """The name without the end that OpenMetrics adds to each sample."""
        return self.name.removesuffix("_total").removesuffix("_info")


def _group(labels: tuple[str, ...], *rows: tuple[str, ...]) -> Sequence[Family]:
    return [
        Family(name, meaning, field, (*labels, *own))
        for name, meaning, field, *own in rows
    ]


_OF_AGENTS: Final = _group(
    ("project",),
    ("bls_agent_info", "The agents.", "identities", "process", "version"),
    ("bls_agent_open", "Whether the agent is open.", "open"),
    ("bls_agent_faults_total", "Failures of the agent's own code.", "faults"),
    ("bls_commands_total", "Commands that ended.", "ended", "command", "outcome"),
    ("bls_command_duration_seconds", "Time of a command.", "durations", "command"),
    ("bls_command_wait_seconds", "Time from sending to taking a command.", "waits"),
    ("bls_commands_running", "Handlers that run now.", "commands_running"),
    ("bls_commands_stuck", "Handlers that run beyond their time.", "commands_stuck"),
    ("bls_commands_held", "Commands not acknowledged.", "commands_held"),
    ("bls_lease_losses_total", "Lost leases on taken commands.", "lease_losses"),
    ("bls_log_records_total", "Log records that left the queue.", "logs", "result"),
    ("bls_log_dropped_total", "Dropped log records.", "logs_dropped", "reason"),
    ("bls_log_queue_records", "Log records that wait.", "logs_queued"),
    ("bls_reconnect_failures_total", "Failed connects to Redis.", "reconnect_failures"),
    ("bls_event_loop_stalls_total", "Blocks of the event loop.", "loop_stalls"),
)
_OF_CACHES: Final = _group(
    (),
    ("bls_function_cache_calls_total", "Calls of the functions.", "calls", "result"),
    ("bls_function_cache_computed_total", "Runs of the functions.", "computed"),
    ("bls_function_cache_redis_failures_total", "Failed requests.", "redis_failures"),
)
_OF_HEARTBEATS: Final = _group(
    ("key",),
    ("bls_heartbeat_owned", "Whether the key belongs to this process.", "owned"),
    ("bls_heartbeat_beats_total", "Writes of the heartbeat.", "beats", "result"),
    ("bls_heartbeat_losses_total", "Take-overs by another process.", "losses"),
)
_OF_STORES: Final = _group(
    ("store",),
    ("bls_store_failed_writes_total", "Writes that were given up.", "failed_writes"),
)
_OF_RUNS: Final = _group(
    (),
    ("bls_run_writers_open", "Runs that are written now.", "open_runs"),
    ("bls_run_writer_events_total", "Events that left the queue.", "events", "result"),
    ("bls_run_writer_dropped_total", "Dropped events.", "dropped", "reason"),
    ("bls_run_writer_queue_events", "Events that wait.", "queued"),
)
# A class of sources → the metrics of each source of this class.
_BY_CLASS: Final[Mapping[type[object], Sequence[Family]]] = {
    ProjectAgent: _OF_AGENTS,
    FunctionCache: _OF_CACHES,
    Heartbeat: _OF_HEARTBEATS,
    WritingStore: _OF_STORES,
    EventStore: _OF_RUNS,
}
FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {family.name: family for group in _BY_CLASS.values() for family in group}
)


class _Histogram:
    """The number of values in each bucket, and the sum of all values."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def list_samples(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Return suffix, value of the label ``le``, and value of each sample."""
        up_to = list(accumulate(self._counts.copy()))
        for bound, count in zip((*self._bounds, "+Inf"), up_to, strict=True):
            yield "_bucket", (str(bound),), count
        yield "_count", (), up_to[-1]
        yield "_sum", (), self._sum


class _CommandRecorder:
    """Counts the commands of one agent, in the event loop of the agent."""

    def __init__(self, bounds: Sequence[float], router: Router) -> None:
        self._bounds = bounds
        self._router = router
        self.reset_after_fork()
        register(self)

    def reset_after_fork(self) -> None:
        """Count from zero in a forked child, because the parent exports its counts."""
        self.ended = Counter[tuple[str, str]]()
        self.durations = defaultdict[str, _Histogram](self._new)
        self.waits = self._new()

    def _new(self) -> _Histogram:
        return _Histogram(self._bounds)

    def list_ended(self) -> dict[tuple[str, str], int]:
        """Return the counts, with zeros for the usual outcomes of own commands."""
        own = [
            handler.name
            for handler in self._router.list_handlers()
            if not self._router.is_builtin(handler.name)
        ]
        return dict.fromkeys(product(own, USUAL), 0) | self.ended.copy()

    def begin(self, taken: TakenCommand) -> OnEnd:
        return partial(self._end, taken.registered or UNKNOWN, taken.waited)

    def _end(
        self, command: str, waited: float | None, outcome: Outcome, _: object
    ) -> None:
        self.ended[command, outcome.kind.value] += 1
        if not outcome.duration_ms:
            return  # the command was never started
        self.durations[command].add(outcome.duration_ms / 1000)
        if waited is not None:
            self.waits.add(waited)


class AgentCollector(Collector):
    """Exports the counters of agents and of other objects to Prometheus.

    ::

        REGISTRY.register(AgentCollector(agent))
        REGISTRY.register(AgentCollector(cache, heartbeat, store))

    A program with several agents passes all of them to one collector. :data:`FAMILIES`
    lists the metrics. Metrics of an agent have the label ``project``. Commands without
    a handler of their own count as ``_unknown``. If several objects have an equal
    series, their values are added. Some counters of an agent begin again at zero when
    the agent is opened again.

    The commands are counted from the moment when the collector is made. :meth:`collect`
    never waits for Redis, and may be called in any thread, before the agent is opened
    and after it was closed.

    Args:
        sources: Agents, function caches, heartbeats and stores (``EventStore``,
            ``TaskStatus``, ``BacktestProgress``, ``SyncProgress``).
        buckets: Upper bounds of the two histograms, in seconds, in ascending order.

    Raises:
        ConfigurationError: There is no source, a source is none of these objects, or
            the buckets are not ascending.
    """

    def __init__(self, *sources: Source, buckets: Sequence[float] = BUCKETS) -> None:
        rule = "agents, function caches, heartbeats or stores that write"
        classes = tuple(_BY_CLASS)
        if not sources or not all(isinstance(source, classes) for source in sources):
            raise ConfigurationError("sources", sources, rule)
        given = tuple(buckets)  # perhaps an iterator, which can be read only once
        limits = pairwise((0.0, *given, math.inf))
        if not given or not all(one < next_one for one, next_one in limits):
            raise ConfigurationError("buckets", given, "ascending seconds above 0")
        bounds = tuple(float(bound) for bound in given)
        self._sources = dict.fromkeys(sources)
        self._recorders: dict[object, _CommandRecorder] = {}
        for source in self._sources:
            if isinstance(source, ProjectAgent):
                state = state_of(source)
                recorder = _CommandRecorder(bounds, state.router)
                self._recorders[source] = recorder
                state.observers.add(recorder)
                # The agent may live longer than this collector.
                finalize(self, state.observers.remove, recorder)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics of these sources without values, for the registry."""
        return self._make_metrics().values()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of these sources with their values at this moment."""
        totals: dict[tuple[str, str, tuple[str, ...]], float] = defaultdict(float)
        for source in self._sources:
            for group, labels, counters in self._read(source):
                for family in group:
                    for suffix, own, value in _list_samples(counters[family.field]):
                        totals[family.name, suffix, labels + own] += value
        metrics = self._make_metrics()
        for (name, suffix, labels), value in totals.items():
            names = (*FAMILIES[name].labels, "le")
            shown = dict(zip(names, labels, strict=False))  # only buckets have ``le``
            metrics[name].samples.append(Sample(name + suffix, shown, value))
        return metrics.values()

    def _make_metrics(self) -> dict[str, Metric]:
        return {
            family.name: Metric(family.base, family.help, family.kind)
            for kind, group in _BY_CLASS.items()
            if any(isinstance(source, kind) for source in self._sources)
            for family in group
        }

    def _read(self, source: Source) -> Iterator[_Counters]:
        match source:
            case ProjectAgent():
                counters = _read_agent(source.stats(), self._recorders[source])
                yield _OF_AGENTS, (source.project,), counters
            case FunctionCache():
                counters = vars(source.stats())
                calls = {"hit": counters["hits"], "miss": counters["misses"]}
                yield _OF_CACHES, (), counters | {"calls": calls}
            case Heartbeat():
                counters = vars(source.stats())
                beats = {
                    "written": counters["writes"],
                    "refreshed": counters["refreshes"],
                    "failed": counters["failures"],
                }
                yield _OF_HEARTBEATS, (counters["key"],), counters | {"beats": beats}
            case _:
                failed = {"failed_writes": source.failed_writes}
                yield _OF_STORES, (type(source).__name__,), failed
        if isinstance(source, EventStore):
            counters = vars(source.stats())
            dropped = sum(counters["dropped"].values())
            events = {"written": counters["written"], "dropped": dropped}
            yield _OF_RUNS, (), counters | {"events": events}


def _read_agent(stats: AgentStats, recorder: _CommandRecorder) -> dict[str, Any]:
    logs = {
        "written": stats.logs_delivered,
        "dropped": sum(stats.logs_dropped.values()),
        "not_encoded": sum(stats.logs_not_encoded.values()),
    }
    return {
        **vars(stats),
        "identities": {(stats.instance, bls_agent.__version__): 1},
        "ended": recorder.list_ended(),
        "durations": recorder.durations.copy(),
        "waits": recorder.waits,
        "logs": logs,
    }


def _list_samples(value: Any) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Return suffix, own labels and value of each sample of a counter."""
    by_label: Mapping[str | tuple[str, ...], Any]
    by_label = value if isinstance(value, Mapping) else {(): value}  # pyright: ignore[reportUnknownVariableType]
    for given, one in by_label.items():
        own = (given,) if isinstance(given, str) else given
        if isinstance(one, _Histogram):
            for suffix, le, number in one.list_samples():
                yield suffix, own + le, number
        else:
            yield "", own, one
