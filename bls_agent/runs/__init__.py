"""Contract 003: the events of a run. So far: what a doctor holds against them."""
