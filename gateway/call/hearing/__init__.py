"""What comes from the phone: speech, words and digits of the caller, whether the thought has ended and whether what was
heard is our own echo. It tells `turn_taking`, which decides what becomes of it.
"""
