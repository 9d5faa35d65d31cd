"""What the operator's side takes when the fleet is large: ``python -m benchmarks.load``.

Not beside others, but against goals of its own; a run takes minutes.
"""
