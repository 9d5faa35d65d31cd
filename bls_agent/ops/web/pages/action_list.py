"""Lists whose rows have actions: waiting commands, dead letters, failed requests, tasks.

One template renders all such lists. On a page, a container shows the lists of one path,
and the page requests this path at intervals. An action posts to its own path, and the
response is the new content of the same container, with a note about the result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from bls_agent.core.errors import RedisUnavailableError
from bls_agent.core.keys import encode_key
from bls_agent.ops.terminal import visible
from bls_agent.ops.texts import Texts
from bls_agent.ops.web.pages.rendering import render_if_new

SHOWN: Final = 20  # rows of a list


@dataclass(frozen=True, kw_only=True)
class Action:
    """A button that posts to a path of the console.

    The button of a row also sends the form field ``id`` with the row's id.
    """

    name: str  # unique in the list
    label: str
    path: str  # without the prefix of a proxy
    question: str = ""  # which the user has to confirm; `""` for no confirmation


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row; the caller has passed each text through ``visible``."""

    name: str
    id: str = ""  # the value that actions send; a row without an id has no buttons
    about: str = ""  # a text in smaller letters behind the name
    facts: str = ""  # a second line
    text: str = ""  # arguments or a reason, which may have many lines
    is_bad: bool = False  # whether the text is the reason of a failure
    kind: str = ""  # the name of a colour and shape, as on cards
    progress: float | None = None  # from 0 to 1, as a bar

    @property
    def mark(self) -> str:
        """A short text that differs for different ids, for the ids of HTML elements."""
        return hashlib.sha256(encode_key(self.id)).hexdigest()[:8]


@dataclass(frozen=True, kw_only=True)
class ActionList:
    """One list, with actions on single rows and actions on all rows."""

    key: str  # the id of the HTML element
    title: str
    rows: Sequence[Row] = ()
    limit: int = SHOWN  # the largest number of rows that are shown
    total: int | None = None  # number of all rows, if it is known
    empty: str = ""  # shown if there are no rows
    problem: str = ""  # why the rows cannot be read
    actions: Sequence[Action] = ()  # buttons of each row
    head: Sequence[Action] = ()  # buttons beside the title, for all rows

    @property
    def count(self) -> str:
        """The number of all rows; ``20+`` if only a part of the rows was read."""
        if len(self.rows) <= self.limit:
            return f"{len(self.rows):,}"
        known = self.total is not None and self.total > self.limit
        return f"{self.total:,}" if known else f"{self.limit:,}+"


def make_action(texts: Texts, name: str, path: str, /, **values: str) -> Action:
    """Make an action with texts of the catalogue.

    The text ``name`` is the label, and the text ``{name}_sure`` is the question.
    """
    question = texts.get(f"{name}_sure", "").format(**values)
    return Action(name=name, label=texts[name], path=path, question=question)


def render_lists(
    request: Request, lists: Sequence[ActionList], note: str = ""
) -> Response:
    """Return the content of a container, or 204 if the page already shows it."""
    return render_if_new(request, "action_list.html", lists=lists, note=note)


def is_forbidden(error: Exception) -> bool:
    """Return whether the console's Redis user lacks a right."""
    return isinstance(error, RedisUnavailableError) and error.kind == "no_permission"


def describe_failure(
    texts: Texts, name: str, error: Exception, hint: str = "hint_rights"
) -> str:
    """Return why an action failed, and if a right is missing, how to get the right."""
    if isinstance(error, RedisUnavailableError) and error.ambiguous:
        return texts["perhaps_done"]
    note = texts[name].format(reason=visible(str(error)))
    return f"{note} {texts[hint]}" if is_forbidden(error) else note
