"""Vonage Voice API WebSockets."""
