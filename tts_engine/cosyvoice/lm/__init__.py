"""The language model: takes prompts and returns speech tokens as they are drawn. It decides which clauses are in the
next decode step. It knows nothing about audio.
"""
