"""The asset library: tools, prompts and skills from a repository of YAML files.

The names below are loaded when they are first used. Reading the library needs no extra.
Manifests, synchronisations and ``GitHubSource`` need the extra ``assets``.
``GitSource`` needs the extra ``git``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bls_agent.core import lazy

if TYPE_CHECKING:
    from bls_agent.assets.git import GitSource
    from bls_agent.assets.github import GitHubSource
    from bls_agent.assets.library import AssetLibrary
    from bls_agent.assets.manifest import (
        AgentSpecs,
        AssetManifest,
        ConfigItem,
        Runtime,
        SelectOption,
        manifest_schema,
        parse_manifest,
    )
    from bls_agent.assets.records import Asset, AssetSummary, SyncReport, SyncState
    from bls_agent.assets.sources import DirectorySource, Head, Source, SourceFile
    from bls_agent.assets.sync import AssetSync, SyncStep

__all__ = [
    "AgentSpecs",
    "Asset",
    "AssetLibrary",
    "AssetManifest",
    "AssetSummary",
    "AssetSync",
    "ConfigItem",
    "DirectorySource",
    "GitHubSource",
    "GitSource",
    "Head",
    "Runtime",
    "SelectOption",
    "Source",
    "SourceFile",
    "SyncReport",
    "SyncState",
    "SyncStep",
    "manifest_schema",
    "parse_manifest",
]

_HOMES = {
    "Asset": "records",
    "AssetLibrary": "library",
    "AssetSummary": "records",
    "AssetSync": "sync",
    "DirectorySource": "sources",
    "GitHubSource": "github",
    "GitSource": "git",
    "Head": "sources",
    "Source": "sources",
    "SourceFile": "sources",
    "SyncReport": "records",
    "SyncState": "records",
    "SyncStep": "sync",
}

if not TYPE_CHECKING:  # checkers see the imports above, and refuse other names
    __getattr__, __dir__ = lazy.names(__name__, __all__, _HOMES, "manifest")
