"""A console that pushes the name of a command alone, in front of the others."""

from __future__ import annotations

import os
import sys

import redis

client = redis.Redis.from_url(os.environ["BLS_REDIS_URL"])
client.lpush(f"{os.environ['BLS_PROJECT']}_控制", sys.argv[1])
