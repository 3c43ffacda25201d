"""Turns caller speech into words, by the embedded recogniser or an external one. Knows nothing of turns."""
