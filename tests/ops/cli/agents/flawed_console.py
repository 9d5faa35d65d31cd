"""A console that pushes a payload as it is, at the head of the list or at its tail."""

from __future__ import annotations

import os
import sys

import redis

payload, end = sys.argv[1:]
client = redis.Redis.from_url(os.environ["BLS_REDIS_URL"])
push = client.lpush if end == "head" else client.rpush
push(f"{os.environ['BLS_PROJECT']}_控制", payload)
