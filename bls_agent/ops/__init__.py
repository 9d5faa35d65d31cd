"""The operator's programs: command line, web console, doctor, fleet.

No other package of ``bls_agent`` imports them.
"""

from __future__ import annotations
