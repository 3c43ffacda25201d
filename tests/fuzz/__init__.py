"""Fuzzing: a target for each parser that meets the network, its kept corpus, and what drives them."""
