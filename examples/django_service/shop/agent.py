"""The agent, which settings, commands and wsgi share. It only remembers here."""

from __future__ import annotations

import os

from bls_agent import ProjectAgent

agent = ProjectAgent(os.environ.get("PROJECT", "订单系统"))
