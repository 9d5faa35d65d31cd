"""The tool's code. The library names it and never runs it."""

from __future__ import annotations


def run(article: str, warehouse: str = "上海") -> int:
    return {"茶": 42, "瓷器": 7}.get(article, 0) + (warehouse == "上海")
