"""Long runs: one file for each subject, each a function with a number of rounds.

The tests run them with small numbers; ``python -m tests.soak.<subject> [number]`` with
large ones.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def try_histories(
    machine: type[RuleBasedStateMachine], examples: int, steps: int, *, shrink: bool
) -> None:
    """Try so many histories of a state machine.

    Args:
        machine: The state machine.
        examples: How many histories.
        steps: The longest one.
        shrink: Whether a history that fails is made smaller, by trying parts of it.
    """
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
        ),
    )
