"""Log calls of the standard library through a QueueHandler, drained by a listener.

The listener's handler builds the same JSON and keeps none of it: no consumer does
less. ``through`` is ``SimpleQueue``, which is written in C, never full and the fastest,
or ``Queue``, which is bounded like the agent's buffer.
"""

from __future__ import annotations

import logging
import queue
from logging.handlers import QueueHandler, QueueListener

import orjson

from benchmarks.subjects.acting import Options, act
from benchmarks.subjects.log_calls import time_calls

FIELDS = ("order", "amount", "channel")


class Encoder(logging.Handler):
    """Builds the record that a console would read, and counts it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Encode one record."""
        orjson.dumps(
            {
                "timestamp": record.created,
                "level": record.levelname.lower(),
                "message": record.getMessage(),
                "metadata": {name: getattr(record, name) for name in FIELDS},
            }
        )
        self.count += 1


async def run(options: Options) -> dict[str, list[int]]:
    """Time the calls; each record has to be handled by the listener."""
    bounded = options["through"] == "Queue"
    records: queue.Queue[object] | queue.SimpleQueue[object]
    records = queue.Queue(10_000) if bounded else queue.SimpleQueue()
    encoder = Encoder()
    listener = QueueListener(records, encoder)
    logger = logging.getLogger("orders")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    logger.addHandler(QueueHandler(records))
    info = logger.info

    def call(number: int) -> None:
        extra = {"order": number, "amount": 99.5, "channel": "alipay"}
        info("订单已支付", extra=extra)

    listener.start()
    found = await time_calls(call, options)
    listener.stop()
    if encoder.count != sum(map(len, found.values())):
        raise RuntimeError(encoder.count)
    return found


if __name__ == "__main__":
    act(run)
