"""Counts each call and request, and keeps the records over restarts. This package knows no live calls and no HTTP."""
