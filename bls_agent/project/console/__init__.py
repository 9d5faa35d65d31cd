"""What a console reads of a project: its log, its control list, its keys."""

from __future__ import annotations
