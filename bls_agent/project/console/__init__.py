"""What a console reads of a project: its log, its queue, which ones there are."""

from __future__ import annotations
