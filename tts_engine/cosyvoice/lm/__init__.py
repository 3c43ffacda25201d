"""The language model: a prompt in, speech tokens out as they are drawn. Decides who draws next; knows nothing of
sound.
"""
