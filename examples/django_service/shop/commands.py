"""What the console may ask for."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

from django.db import close_old_connections

from .agent import agent
from .models import Order

logger = logging.getLogger("shop.orders")


@contextmanager
def database() -> Generator[None]:
    """Do what Django does around a request: connections belong to a thread."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


@agent.command
def accept(goods: str) -> dict[str, int]:
    """A plain function runs in a thread of the agent: there the ORM may block."""
    with database():
        order = Order.objects.create(goods=goods)
    logger.info("order %s accepted", order.pk, extra={"goods": goods})
    return {"order": order.pk}
