"""Checks what works on this machine, and whether a model directory is complete. It changes nothing."""
