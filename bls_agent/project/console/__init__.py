"""The requests of a console to one project: log, control list, dead letters, keys."""

from __future__ import annotations
