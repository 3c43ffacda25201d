"""Engines on a real Ray cluster of this machine."""
