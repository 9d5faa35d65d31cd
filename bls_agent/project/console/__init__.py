"""What a console reads of a project: its log, its queue, its keys."""

from __future__ import annotations
