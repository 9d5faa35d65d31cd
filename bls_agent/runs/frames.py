"""Server-sent events as bytes, one at a time; no I/O here.

A frame is lines, and an empty line ends it. Whoever could put a line end into one of
them could forge frames: nothing that is written here holds one.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["write_comment", "write_frame", "write_retry", "write_unnamed"]

# What ends a line for the standard (CR, LF), what makes browsers ignore an id (NUL),
# what ends a line for readers that know Unicode (as Python's splitlines), and what has
# no UTF-8.
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# The name of an event; of one that is no event of the run, up to where its data begins.
_NAME: Final = re.compile(
    rb"^event: (?:(gap|writer_lost|close)\ndata: \{|.*\n)", re.MULTILINE
)
# The same within JSON, where JSON itself does not escape it.
_LINE_ENDS: Final = (
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
    (b"\xc2\x85", b"\\u0085"),
)


def write_frame(event: str, data: bytes, event_id: str = "") -> bytes:
    r"""Write one event.

    Control characters, U+2028 and U+2029 in the name and the id appear as JSON escapes
    them (``\u000a``); within the data the three line ends that JSON leaves as they are
    do, too, which is the same JSON.

    Args:
        event: Its name.
        data: JSON on one line, as the codec writes it.
        event_id: What the client comes back with as ``Last-Event-ID``; ``""`` leaves
            the client's as it is.
    """
    for end, escaped in _LINE_ENDS:
        if end in data:
            data = data.replace(end, escaped)
    name = _on_one_line(event)
    if not event_id:
        return b"event: %s\ndata: %s\n\n" % (name, data)
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (_on_one_line(event_id), name, data)


def write_unnamed(frames: bytes) -> bytes:
    """Take the names out of frames, for clients that only know ``onmessage``.

    Data of a gap, a lost writer and the end say what they are in ``type``.
    """
    return _NAME.sub(
        lambda name: b'data: {"type":"%b",' % name[1] if name[1] else b"", frames
    )


def write_comment(text: str = "") -> bytes:
    """Write what no program is told: it keeps the connection alive."""
    return b": %s\n\n" % _on_one_line(text)


def write_retry(milliseconds: int) -> bytes:
    """Write how long the client waits before it connects again."""
    return b"retry: %d\n\n" % milliseconds


def _on_one_line(text: str) -> bytes:
    if text.isascii() and text.isprintable():
        return text.encode()
    return _UNSAFE.sub(_escape, text).encode()


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
