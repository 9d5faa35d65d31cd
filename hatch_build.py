"""Add the addresses of the project to the distributions, while hatchling builds them.

The repository does not know where it stands. The release sets `BLS_PROJECT_URL` to the
address of the repository, and `BLS_SITE_URL` to that of the documents; a distribution
that is built without them has no addresses.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Addresses(MetadataHookInterface):
    """Fills in `urls`, which pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what the variables of the environment name."""
        urls = {}
        if site := os.environ.get("BLS_SITE_URL"):
            urls["Documentation"] = site
        if repository := os.environ.get("BLS_PROJECT_URL", "").rstrip("/"):
            urls["Source"] = repository
            urls["Issues"] = f"{repository}/issues"
            urls["Changelog"] = f"{repository}/blob/main/CHANGELOG.md"
            urls["Security"] = f"{repository}/security/policy"
        metadata["urls"] = urls
