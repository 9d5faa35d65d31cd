"""A Django site on the console.

Shows: an agent that lives in the processes that serve (``shop/wsgi.py``) and not in every
management command, Django's LOGGING with BLSHandler (``shop/settings.py``), a view that
logs, a command that uses the ORM in a thread (``shop/commands.py``).
Needs: ``pip install . django gunicorn`` and a Redis at ``BLS_REDIS_URL`` (default
redis://127.0.0.1:6379/0; ``python -m bls_agent.devserver`` starts one).
Run:   ``python examples/django_service/manage.py migrate --run-syncdb``, then
``gunicorn --chdir examples/django_service --threads 8 shop.wsgi``; Ctrl-C or ``kill``
ends it in order. The variables PROJECT and DATABASE name another project and file.
"""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
