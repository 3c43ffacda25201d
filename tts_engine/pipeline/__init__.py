"""Turns clauses into frames, whatever the voice: it opens utterances, trims silence, remembers clauses, and keeps
within the bound of sound made ahead.
"""
