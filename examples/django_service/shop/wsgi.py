"""The site as servers load it, in each process that serves: the agent's place."""

from __future__ import annotations

import os
from contextlib import ExitStack

from django.core.wsgi import get_wsgi_application
from django.utils.module_loading import autodiscover_modules

from .agent import agent

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
application = get_wsgi_application()
autodiscover_modules("commands")  # of each app, now that models can be imported

stack = ExitStack()  # the interpreter's exit closes it
stack.enter_context(agent.in_thread())
