"""Contract 004: queues and filters of crawlers. So far: what a doctor holds against them."""
