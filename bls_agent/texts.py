"""What people read, in Chinese or English: catalogues and the reader's language.

One file per program in ``locale/``, one table per language; the code names a text by its
key, and nothing that people read in Chinese stands in the code.
"""

from __future__ import annotations

import importlib.resources
import tomllib
from collections.abc import Mapping
from typing import Final, TypeAlias, cast

__all__ = ["LANGUAGES", "Texts", "choose_language", "load_texts"]

Texts: TypeAlias = Mapping[str, str]

LANGUAGES: Final = ("zh", "en")


def choose_language(environ: Mapping[str, str]) -> str:
    """Tell from the locale whether the reader wants ``zh`` or ``en``."""
    names = ("LC_ALL", "LC_MESSAGES", "LANG")
    wanted = next((environ[name] for name in names if environ.get(name)), "")
    return "zh" if wanted.lower().startswith("zh") else "en"


def load_texts(catalogue: str, language: str) -> Texts:
    """Read one language of a catalogue.

    Args:
        catalogue: Its name: ``demo``, ``doctor``, ``cli``, ``web``.
        language: ``zh`` or ``en``.
    """
    file = importlib.resources.files("bls_agent") / "locale" / f"{catalogue}.toml"
    tables = tomllib.loads(file.read_text("utf-8"))
    return cast("Texts", tables[language])
