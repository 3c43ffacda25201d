"""Decides who may be called, as whom, and how often: for transfers and placed calls alike, whatever carries them. This
room knows neither carriers nor SIP messages."""
