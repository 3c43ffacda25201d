"""The language model. It takes a prompt and gives speech tokens as they are drawn. It decides for which clause it draws
next, and knows nothing of sound.
"""
