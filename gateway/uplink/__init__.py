"""What is done with caller audio, in a thread of its own: voice activity, recording, what a recogniser gets. Reports
what it hears, and decides nothing about turns.
"""
