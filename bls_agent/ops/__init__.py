"""The operator's programs: command line, web console, doctor, fleet.

No room imports them.
"""

from __future__ import annotations
