"""Prepares text for speech: finds what can be spoken, cuts a stream of tokens into clauses, writes numbers as words.
Pure."""
