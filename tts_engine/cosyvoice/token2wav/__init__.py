"""Turns speech tokens into audio, in batches over all calls. ``admission`` decides which clauses may begin,
``scheduler`` which run next, and ``block_manager`` which cache blocks they get. ``runner`` and ``batch`` compute on the
device, and ``worker`` is the thread between them and the event loop. It knows nothing about text or the language model.
"""
