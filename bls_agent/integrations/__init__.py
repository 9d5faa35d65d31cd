"""What other libraries' programs are given: each module needs an extra of its own."""

from __future__ import annotations
