"""Plivo Audio Streaming."""
