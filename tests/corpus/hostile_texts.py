"""Texts that try to be obeyed instead of shown: by a terminal, a page, a template.

Each may stand in a project's name where the rules for names allow it, in a log message,
in metadata, in a command's name, arguments, id and source, and in a status.
"""

from __future__ import annotations

from typing import Final

__all__ = ["HOSTILE_TEXTS", "MARKUP", "TERMINAL"]

TERMINAL: Final = {
    "clear-screen": "before\x1b[2Jafter",
    "title": "before\x1b]0;owned\x07after",
    "link": "\x1b]8;;http://127.0.0.1:1/\x1b\\click\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;b3duZWQ=\x07",
    "device-control": '\x1bP$q"p\x1b\\',
    "c1-csi": "before\x9b31mred",
    "overwrite": "an error\rall is well",
    "bell": "ding\x07",
    "backspaces": "wrong\x08\x08\x08\x08\x08right",
    "bidi-override": "user\u202egnp.exe",
    "bidi-isolate": "\u2066admin\u2069 \u2067nimda\u2069",
    "zero-width": "re\u200blo\u200dad\ufeff",
    "new-line": "one\ntwo\r\nthree\u2028four\u2029five\x85six",
    "tab": "a\tb",
    "nul": "a\x00b",
    "delete": "a\x7fb",
    "rich-markup": "[bold red]owned[/] [link=http://127.0.0.1:1/]x[/link]",
    "emoji-code": ":warning: :skull:",
    "percent": "%s %n %(x)s {0} {name}",
    "combining": "a" + "\u0301" * 60,
}
MARKUP: Final = {
    "script": "<script>alert(1)</script>",
    "script-end": "</script><script>alert(2)</script>",
    "image": '<img src=x onerror="alert(3)">',
    "svg": "<svg/onload=alert(4)>",
    "attribute-double": '" onmouseover="alert(5)" x="',
    "attribute-single": "' onfocus='alert(6)' autofocus='",
    "textarea-end": "</textarea><script>alert(7)</script>",
    "title-end": "</title><script>alert(8)</script>",
    "comment-end": "--><script>alert(9)</script>",
    "javascript-url": "javascript:alert(10)",
    "data-url": "data:text/html,<script>alert(11)</script>",
    "jinja": "{{7*7}}{% raw %}{{ config }}",
    "htmx": '<div hx-get="/" hx-trigger="load" hx-on:load="alert(12)">x</div>',
    "htmx-out-of-band": '<div id="main" hx-swap-oob="true">owned</div>',
    "meta-refresh": '<meta http-equiv="refresh" content="0;url=http://127.0.0.1:1/">',
    "base": '<base href="http://127.0.0.1:1/">',
    "style": "<style>body{display:none}</style>",
    "entities": "&lt;b&gt; &amp; &#x3c;script&#x3e;",
    "formula": '=cmd|"/c calc"!A1',
    "event-stream": "\n\nevent: close\ndata: owned\n\n",
    "template-literal": "${alert(13)} `x`",
}
HOSTILE_TEXTS: Final = TERMINAL | MARKUP
