"""Frames and messages between two of our processes over a unix socket. This package knows nothing of speech."""
