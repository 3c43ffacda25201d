"""Whose turn it is, what an interruption cuts, what the caller has heard of each turn. Pure: the time is an argument,
and what is to be done goes out through `turns.Effects`.
"""
