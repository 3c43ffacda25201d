"""Command line, wiring, simulated caller and load of the voice-bot media server."""

__version__ = "0.1.0"
