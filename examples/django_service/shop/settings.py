"""As little as a site needs; the part of interest is LOGGING."""

from __future__ import annotations

import os
from pathlib import Path

from django.core.management.utils import get_random_secret_key

HERE = Path(__file__).parents[1]

SECRET_KEY = os.environ.get("SECRET_KEY") or get_random_secret_key()
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"  # so that runserver starts the agent, too
INSTALLED_APPS = ["shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", str(HERE / "shop.sqlite3")),
    }
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {
        "terminal": {"class": "logging.StreamHandler"},
        "console": {"()": "bls_agent.BLSHandler", "agent": "ext://shop.agent.agent"},
    },
    "root": {"level": "INFO", "handlers": ["terminal", "console"]},
}
