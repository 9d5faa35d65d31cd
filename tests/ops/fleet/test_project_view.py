"""A view that is shown for longer than the moment of its read."""

from __future__ import annotations

from bls_agent.ops.fleet import ProjectView
from bls_agent.ops.web.api import _describe_project
from bls_agent.project.messages import IntakeState
from bls_agent.project.status.intake import IntakeReport


def paused(age: float) -> dict[str, IntakeReport]:
    return {"一": IntakeReport(state=IntakeState.PAUSED, since=1.0, age=age)}


def test_everything_ages() -> None:
    """Ages grow, the rest of the TTL shrinks, and what is unknown stays unknown."""
    view = ProjectView(
        project="甲", age=1.0, ttl=3.0, queue_age=2.0, last_record_age=3.0, last_error_age=4.0, turned_age=5.0, intake=paused(6.0),
    )  # fmt: skip
    assert view.aged(10.0) == ProjectView(
        project="甲", age=11.0, ttl=0.0, queue_age=12.0, last_record_age=13.0, last_error_age=14.0, turned_age=15.0, intake=paused(16.0),
    )  # fmt: skip
    assert view.aged(10.0).intake["一"].age == 16.0
    unknown = ProjectView(project="甲")
    assert unknown.aged(10.0) == unknown


def test_the_interface_ages_what_it_describes() -> None:
    described = _describe_project(
        ProjectView(project="甲", age=1.0, intake=paused(6.0)), 10.0
    )
    assert (described["age"], described["intake"][0]["age"]) == (11.0, 16.0)
