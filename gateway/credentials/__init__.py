"""Identifies the holder of a key or token. This package knows no requests, and nothing of a holder's rights."""
