"""Plays the gateway against a dialogue application, over its WebSocket, and says what the application does wrong."""
