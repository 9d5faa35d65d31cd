"""What a cluster cannot do for a project, because of its name: said before anything is."""

from __future__ import annotations

from bls_agent.endpoint import Endpoint
from bls_agent.errors import ConfigurationError
from bls_agent.keys import CONTROL, PROJECT_STATUS
from bls_agent.names import shares_slot

__all__ = ["check_slots"]


def check_slots(
    project: str, endpoint: Endpoint | None, *, mode: str, replicas: bool
) -> None:
    """Refuse what needs keys in the slots of a project's own where there can be none.

    Args:
        project: The project's name.
        endpoint: Where Redis is; ``None`` if nobody knows yet.
        mode: How commands are received.
        replicas: Whether several processes share the name.

    Raises:
        ConfigurationError: It is a cluster, and they would lie in other slots.
    """
    needs = "mode='reliable'" if mode == "reliable" else "replicas=True" * replicas
    keys = (CONTROL.build(project=project), PROJECT_STATUS.build(project=project))
    is_cluster = endpoint is not None and endpoint.is_cluster
    if is_cluster and needs and not all(map(shares_slot, keys)):
        rule = (
            f"on a cluster {needs} keeps keys in the slots of the project's own, and "
            "the braces of this name make a slot that no other key can be put into"
        )
        remedy = f"Use a name without {{ and }}, one server, or no {needs}."
        raise ConfigurationError("project", project, rule, remedy)
