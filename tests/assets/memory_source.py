"""A source that a test changes as it likes, and that fails as it is told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field

from bls_agent import SourceError
from bls_agent.assets import Head, SourceFile
from bls_agent.assets.sources import blob_sha


def manifest(
    asset_id: str, version: str = "1.0.0", category: str = "prompt", **more: str
) -> bytes:
    """A manifest of a prompt or a skill."""
    lines = [
        f"id: {asset_id}",
        f"version: {version}",
        f"category: {category}",
        f"name: {asset_id}",
    ]
    lines += [f"{name}: {text}" for name, text in more.items()]
    return "\n".join(lines).encode()


@dataclass
class MemorySource:
    """Files by path; each ``move`` is a commit.

    Attributes:
        files: What the next commit holds.
        failing: Paths whose download fails, or for ``head`` and ``tree`` these.
        wait: Seconds that each failure asks for.
        torn: Paths of which half arrives.
        asked: What was asked for, in order.
    """

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    failing: set[str] = field(default_factory=set[str])
    wait: float = 7.0
    torn: set[str] = field(default_factory=set[str])
    links: set[str] = field(default_factory=set[str])
    asked: list[str] = field(default_factory=list[str])
    name: str = "memory"
    base_path: str = ""

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> MemorySource:
        return cls(dict(files))

    async def head(self) -> Head:
        self._ask("head")
        said = "".join(
            f"{path} {blob_sha(text)}\n" for path, text in sorted(self.files.items())
        )
        return Head(blob_sha(said.encode()))

    async def tree(self, head: Head) -> Sequence[SourceFile]:
        assert head.commit
        self._ask("tree")
        return [
            SourceFile(path, blob_sha(text), len(text), path in self.links)
            for path, text in self.files.items()
        ]

    async def fetch(
        self, head: Head, files: Sequence[SourceFile]
    ) -> AsyncGenerator[tuple[SourceFile, bytes | SourceError]]:
        assert head.commit
        self._ask("fetch")
        for file in files:
            self.asked.append(file.path)
            if file.path in self.failing:
                yield file, SourceError("memory", "503", retry_after=self.wait)
            else:
                text = self.files[file.path]
                yield file, text[: len(text) // 2] if file.path in self.torn else text

    async def aclose(self) -> None:
        pass

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if what in self.failing:
            raise SourceError("memory", "502", retry_after=self.wait)
