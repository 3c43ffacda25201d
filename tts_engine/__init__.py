"""The speech engine: text in, frames for the line out. Knows no call and no carrier."""

from tts_engine import telemetry

telemetry.switch_off()
