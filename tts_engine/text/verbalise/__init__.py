"""Writes numbers, amounts, dates, times, codes, addresses and symbols as words, in seven languages.

``languages.verbalise`` is the entry. ``rules`` holds the kinds and their order, which all languages share; each
language's file holds its words. Pure.
"""
