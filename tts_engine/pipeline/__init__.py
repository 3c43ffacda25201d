"""Turns clauses into frames, whatever the voice: it opens utterances, trims silence, remembers clauses, has a clause
made once for all who ask for it at one moment, and keeps
within the bound of sound made ahead.
"""
