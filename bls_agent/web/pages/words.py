"""How numbers and times are said on a page, in the reader's language. Pure.

The scripts of the page say the same in the same way once the page lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bls_agent.codec import JSONObject, JSONValue
from bls_agent.texts import Texts

__all__ = ["Words", "draw_spark"]

MINUTE: Final = 60
HOUR: Final = 3_600
DAY: Final = 86_400
SPARK: Final = (90, 24)  # the view box of a sparkline
OLD: Final = 5 * MINUTE  # in which errors are counted
WHOLE: Final = 10  # a rate from here on is said without a fraction


@dataclass(frozen=True, kw_only=True)
class Words:
    """Says what stands on a card.

    Attributes:
        texts: The catalogue.
        root: What stands before each path, behind a proxy.
    """

    texts: Texts
    root: str = ""

    def age(self, seconds: float) -> str:
        """Say how long ago something was."""
        if seconds < 1:
            return self.texts["js_age_now"]
        if seconds < MINUTE:
            return self.texts["js_age_seconds"].format(n=int(seconds))
        if seconds < HOUR:
            return self.texts["js_age_minutes"].format(n=int(seconds // MINUTE))
        if seconds < DAY:
            return self.texts["js_age_hours"].format(n=int(seconds // HOUR))
        return self.texts["js_age_days"].format(n=int(seconds // DAY))

    def freshness(self, card: JSONObject) -> str:
        """Say how far a card's status can be believed."""
        texts = self.texts
        if card["presence"] == "fresh":
            if card["age"] is None:
                return texts["js_will_expire"]
            about = "" if card["age_known"] else "≈"
            age = about + self.age(card["age"])
            return texts["js_refreshed"].format(age=age)
        last = texts["js_no_record"]
        if card["last"] is not None:
            last = texts["js_last_record"].format(age=self.age(card["last"]))
        said = {
            "untimed": texts["js_no_expiry"],
            "stale": texts["js_expired"],
            "never": texts["js_only_commands"],
        }
        return f"{said[card['presence']]} · {last}"

    def queue(self, card: JSONObject) -> str:
        """Say how many commands wait."""
        waiting: JSONValue = card["queue"]
        return self.texts["js_wrong_type"] if waiting is None else str(waiting)

    def errors(self, card: JSONObject) -> str:
        """Say how many errors there were."""
        return f"{_about(card)}{card['errors']}"

    def error_age(self, card: JSONObject) -> str:
        """Say how long ago the newest error was."""
        return "" if card["error_age"] is None else self.age(card["error_age"])

    def is_old(self, card: JSONObject) -> bool:
        """Tell whether the newest error counts among the errors no more."""
        age: float | None = card["error_age"]
        return age is not None and age > OLD

    def rate(self, card: JSONObject) -> str:
        """Say how many records come in a second."""
        rate: float = card["rate"]
        said = f"{rate:.0f}" if rate >= WHOLE or not rate else f"{rate:.1f}"
        return f"{_about(card)}{said}"

    def beat(self, card: JSONObject) -> str:
        """Say how long ago a worker refreshed its heartbeat."""
        if card["age"] is not None:
            return self.texts["js_beat"].format(age=self.age(card["age"]))
        name = "js_no_expiry" if card["ttl"] is None else "js_will_expire"
        return self.texts[name]

    def run_age(self, card: JSONObject) -> str:
        """Say what happened last in a run, and how long ago."""
        if card["age"] is None:
            return self.texts["js_no_event"]
        told = self.texts["js_last_event"].format(age=self.age(card["age"]))
        return " · ".join(filter(None, (told, card["last"], card["source"])))

    def took(self, seconds: float | None) -> str:
        """Say how long a run took, to two places."""
        if seconds is None:
            return ""
        if seconds < 1:
            return self.texts["js_milliseconds"].format(n=round(seconds * 1000))
        if seconds < MINUTE:
            return self.texts["js_seconds"].format(n=f"{seconds:.1f}")
        units = ((DAY, "days"), (HOUR, "hours"), (MINUTE, "minutes"), (1, "seconds"))
        place = next(n for n, (unit, _) in enumerate(units) if seconds >= unit)
        (large, name), (small, less) = units[place : place + 2]
        counts = (seconds // large, name), (seconds % large // small, less)
        return " ".join(self.texts[f"js_span_{w}"].format(n=int(n)) for n, w in counts)

    def since(self, seconds: float | None) -> str:
        """Say when a run began."""
        return "—" if seconds is None else self.age(seconds)

    def kept(self, ttl: float | None) -> str:
        """Say for how long a run is kept."""
        if ttl is None:
            return self.texts["js_for_ever"]
        if ttl < MINUTE:
            return self.texts["js_span_seconds"].format(n=int(ttl))
        if ttl < HOUR:
            return self.texts["js_span_minutes"].format(n=int(ttl // MINUTE))
        if ttl < 2 * DAY:
            return self.texts["js_span_hours"].format(n=int(ttl // HOUR))
        return self.texts["js_span_days"].format(n=int(ttl // DAY))

    def problem(self, card: JSONObject) -> str:
        """Say what is wrong with a worker's key."""
        word: str = card["problem"]
        return self.texts.get(f"js_problem_{word}", word)

    def figure(self, name: str) -> str:
        """Name what a worker counts; what is its own stays as it is."""
        return self.texts.get(f"js_figure_{name}", name)

    def spark(self, rates: Sequence[int]) -> str:
        """Give the path of a sparkline."""
        return draw_spark(rates)


def _about(card: JSONObject) -> str:
    return "≈" if card["estimated"] else ""


def draw_spark(rates: Sequence[int]) -> str:
    """Draw bars as the ``d`` of a path: nothing for no record, the highest is full."""
    width, height = SPARK
    step = width / max(len(rates), 1)
    highest = max([*rates, 1])
    return "".join(
        f"M{place * step + 0.4:g} {height}v-{max(height * rate / highest, 1.5):.4g}h{step - 0.8:.4g}V{height}z"
        for place, rate in enumerate(rates)
        if rate
    )
