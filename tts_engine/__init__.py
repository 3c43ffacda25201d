"""The speech engine: text goes in, frames for the line come out. It knows no call and no carrier."""

from tts_engine import telemetry

telemetry.switch_off()
