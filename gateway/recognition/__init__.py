"""Turns caller speech into words, by the embedded recogniser or an external one, and hears complete thoughts.

Knows nothing of turns.
"""
