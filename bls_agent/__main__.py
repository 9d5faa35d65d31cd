"""``python -m bls_agent``: the command line."""

from __future__ import annotations

import sys

from bls_agent.ops.cli import main

sys.exit(main())
