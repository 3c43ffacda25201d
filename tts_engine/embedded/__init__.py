"""Voices that run on a CPU without a download. This room knows text, networks and threads; it knows no call."""
