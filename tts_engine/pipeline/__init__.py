"""Clauses to frames, whatever the voice: opens utterances, trims silence, remembers clauses, keeps within the phone's
lead.
"""
