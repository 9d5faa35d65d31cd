"""Tells which versions an environment holds."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from benchmarks.subjects.acting import Options, act


async def run(options: Options) -> dict[str, str]:
    """Give package → version, without those that are not there."""
    found = {}
    for name in options["packages"]:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    act(run)
