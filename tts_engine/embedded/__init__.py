"""Voices that run on a CPU without a download. Knows text, networks and threads; nothing of clauses or lines."""
