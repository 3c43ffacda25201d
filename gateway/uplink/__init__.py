"""Works on caller audio in a thread of its own: voice detection, recording, audio for a recogniser. This room reports
what it hears, and decides nothing about turns.
"""
