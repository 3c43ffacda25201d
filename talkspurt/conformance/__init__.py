"""Plays the gateway against a dialogue application, over its WebSocket, and reports what the application does wrong."""
