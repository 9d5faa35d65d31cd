"""One view; its log record goes to the terminal and to the console."""

from __future__ import annotations

import logging

from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import path

from .models import Order

logger = logging.getLogger("shop.orders")


def show_order(_request: HttpRequest, number: int) -> JsonResponse:
    order = get_object_or_404(Order, pk=number)
    logger.info("order %s shown", number, extra={"goods": order.goods})
    return JsonResponse({"goods": order.goods})


urlpatterns = [path("orders/<int:number>", show_order)]
