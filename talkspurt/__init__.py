"""Command line, wiring, simulated caller and load of the voice-bot media server."""

import tts_engine  # noqa: F401, switches off what libraries report

__version__ = "0.1.0"
