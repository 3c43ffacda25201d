"""Decides what is kept of calls that are over, for how long, and how it is found again. This room knows no live call
and no request."""
