"""What does each side of a SIP dialog say next? Sans I/O: a message and the time in, effects out."""
