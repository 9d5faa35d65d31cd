"""The local console: a page for people, and the HTTP interface of contract 002.

``bls-agent console`` runs it (extra ``web``). To put it into a server of your own, give
:func:`bls_agent.web.app.create_app` a :class:`bls_agent.web.configuration.WebConfig`.
"""

from __future__ import annotations
