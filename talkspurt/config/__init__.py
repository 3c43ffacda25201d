"""The configuration file: this room reads it with line numbers, checks it against each package's own model, and
describes it for people and editors.
"""
