"""Puts load on a real server and measures it from outside, by a clock of its own."""
