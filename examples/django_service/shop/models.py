"""What is sold."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    goods: models.CharField[str, str] = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.goods
