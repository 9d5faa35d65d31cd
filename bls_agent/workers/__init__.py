"""Contract 001: heartbeats, tasks, caches. So far: what a doctor holds against them."""
