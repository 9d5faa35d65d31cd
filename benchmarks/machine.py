"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

from benchmarks.stage import Stage

__all__ = ["describe_machine"]


def describe_machine(stage: Stage) -> str:
    """Give processor, cores, and the versions of everything that took part."""
    info = stage.redis.info("server")
    kind = info.get("server_name", "redis").capitalize()
    number = info.get("valkey_version") or info["redis_version"]
    libraries = ", ".join(
        f"{name} {version(name)}"
        for name in ("bls-agent", "redis", "hiredis", "anyio", "orjson")
    )
    return (
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()}; "
        f"{platform.python_implementation()} {platform.python_version()}; {libraries}; "
        f"{kind} {number} on loopback; event loop: {stage.loop}."
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.machine()
