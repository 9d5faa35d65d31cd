"""The operator's programs: command line, web console, doctor, fleet. Nothing stands on them."""

from __future__ import annotations
