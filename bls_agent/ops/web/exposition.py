"""Writes metrics as text, in the Prometheus text format. No I/O.

The console does not use ``prometheus_client``, because the library would be one more
dependency. The console does not need the library's registry either, because all values
of a scrape come from the feeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from bls_agent.core.codec import cut_text
from bls_agent.core.keys import show_name

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LONGEST_LABEL: Final = 512  # bytes; names in Redis may have any length


@dataclass(frozen=True)
class Family:
    """One metric; the name of a counter ends with ``_total``."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter"] = "gauge"


class Exposition:
    """The samples of one scrape."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = {family.name: family for family in families}
        self._samples: dict[str, dict[tuple[str, ...], float]] = {
            name: {} for name in self._families
        }

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """Add a sample with the values of its labels.

        Ignore an unknown value (``None``), and a second sample with the same labels.
        """
        if value is not None:
            self._samples[name].setdefault(labels, value)

    def write(self) -> bytes:
        """Return the text of all families that have samples."""
        lines: list[str] = []
        for name, samples in self._samples.items():
            if samples:
                family = self._families[name]
                lines.append(f"# TYPE {name} {family.kind}")
                lines.append(f"# HELP {name} {family.help}")
                lines += _write_samples(family, samples)
        return "".join(f"{line}\n" for line in lines).encode()


def _write_samples(
    family: Family, samples: Mapping[tuple[str, ...], float]
) -> Iterable[str]:
    pairs = ",".join(f'{label}="%s"' for label in family.labels)
    labels = f"{{{pairs}}}" if pairs else ""
    line = f"{family.name}{labels} %.16g"
    for values, value in samples.items():
        yield line % (*map(_escape, values), value)


def label_of(text: str) -> str:
    """Return a name as the value of a label: valid UTF-8 of a limited length."""
    return cut_text(show_name(text), LONGEST_LABEL)


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
