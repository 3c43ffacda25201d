"""Puts load on a real server and measures it from outside, with its own clock."""
