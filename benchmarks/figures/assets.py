"""A library of ten thousand assets: synchronised, unchanged, listed."""

from __future__ import annotations

from benchmarks.figures.figure import Figure
from benchmarks.stage import Stage
from benchmarks.summary import Goal, Round

__all__ = ["FIGURE"]

OURS, BARE = "bls-agent", "one by one"
WRITTEN, LISTED = "assets written/s", "lists of all/s"
REQUESTS = "requests of a sync without changes"
SUBJECTS = {OURS: "assets_ours", BARE: "assets_bare"}


def play(stage: Stage) -> Round:
    """Let both write and list the same assets."""
    count = 1_000 if stage.quick else 10_000
    found: dict[str, dict[str, float]] = {}
    for name, subject in SUBJECTS.items():
        remove_assets(stage)
        told = stage.measure(subject, count=count)
        found.setdefault(name, {})[WRITTEN] = count / told["writing"]
        if name == OURS:
            found[BARE] = {LISTED: 1 / told["one_by_one"]}
            found[name] |= {
                LISTED: 1 / told["listing"],
                REQUESTS: told["requests"],
                "first sync with parsing, s": told["first"],
                "longest list meanwhile, ms": 1_000 * told["longest"],
            }
    remove_assets(stage)
    return found


def remove_assets(stage: Stage) -> None:
    """Delete all keys of the library."""
    for pattern in ("asset:*", "bls_agent:{asset:*"):
        keys = list(stage.redis.scan_iter(match=pattern, count=1_000))
        for start in range(0, len(keys), 1_000):
            stage.redis.unlink(*keys[start : start + 1_000])


FIGURE = Figure(
    name="assets",
    title="A library of ten thousand assets",
    about=(
        "10,000 manifests of tools in memory are synchronised into an empty library, while "
        "a second connection lists it twice a second and checks that it never shrinks; then "
        "twice more without changes, and the server counts the requests. Writing is the "
        "part of the first synchronisation behind the parsing of the last manifest. One "
        "by one: redis-py awaits `HGET`, `HSET`, `SADD`, `HSET` and `RPUSH` for each asset "
        "whose bytes were prepared before; to list them, `HGETALL` for each, in five pieces that "
        "take turns with `list`."
    ),
    rounds=1,
    play=play,
    goals=(
        Goal("assets written/s", OURS, WRITTEN, "at least", 3.0, (BARE,)),
        Goal("lists of all assets/s", OURS, LISTED, "at least", 20.0, (BARE,)),
        Goal("requests of a sync without changes", OURS, REQUESTS, "at most", 10),
    ),
)
