"""What the doctor holds against each contract, one module for each."""

from __future__ import annotations
