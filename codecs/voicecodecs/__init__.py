"""Codecs, resampling, tones, levels: functions on samples, and small objects that hold filter state. No I/O."""
