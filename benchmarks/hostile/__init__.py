"""The parts of ``benchmarks/hostile.py``: the attacks, and the clock on the gateway's event loop."""
