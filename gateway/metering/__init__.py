"""Decides what is counted of each call and request, and keeps it over restarts. This room knows no live call and no
request of HTTP."""
