"""Many clients of server-sent events in one process, as cheap as Python can make them.

They share the machine with the server: each wake-up is one ``recv`` and a search for the
time that stands in the event, without an event loop around it.
"""

from __future__ import annotations

import re
import select
import socket
import time

from benchmarks.subjects.acting import Options, act, say

READ = 65_536
AT = re.compile(rb'"at":([0-9]+)')


async def run(options: Options) -> dict[str, object]:
    """Follow a run with ``count`` clients until each has read ``events`` events."""
    count, expected = options["count"], options["count"] * options["events"]
    request = (
        b"GET /runs/%d/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
        % options["run"]
    )
    poll, clients = select.epoll(), dict[int, socket.socket]()
    for _ in range(count):
        client = socket.create_connection(("127.0.0.1", options["port"]))
        client.sendall(request)
        while b'"at":' not in client.recv(READ):  # the first event: it follows
            pass
        client.setblocking(False)  # noqa: FBT003 - its only argument
        clients[client.fileno()] = client
        poll.register(client, select.EPOLLIN)
    say(following=True)
    noted: list[int] = []
    used, began = time.process_time(), time.perf_counter()
    while len(noted) < expected:
        for descriptor, _ in poll.poll():
            chunk = clients[descriptor].recv(READ)
            now = time.monotonic_ns()
            noted.extend(now - int(at) for at in AT.findall(chunk))
    busy = time.process_time() - used
    for client in clients.values():
        client.close()
    return {
        "nanoseconds": noted,
        "busy": busy,
        "seconds": time.perf_counter() - began,
    }


if __name__ == "__main__":
    act(run)
