"""Protocols and values between the rooms, and nothing else: no code that runs, no I/O, no clock."""
