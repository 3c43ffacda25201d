"""Turns clauses into frames, for every voice. It opens utterances, trims silence, remembers clauses, makes a clause
once for all utterances that want it at the same time, and bounds the sound that is made ahead.
"""
