"""From caller speech to words: the embedded recogniser and external ones. Knows nothing of turns."""
