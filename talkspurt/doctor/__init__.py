"""Says what works on this machine, and whether a model directory is whole. It looks and tries; it changes nothing."""
