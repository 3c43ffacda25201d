"""Turns speech tokens into sound, batched over all calls. ``admission`` decides which clauses are let in, ``scheduler``
which run next, ``block_manager`` which part of the caches each holds. ``runner`` and ``batch`` compute on the device,
and ``worker`` is the thread between these and the event loop. This room knows nothing of text and language model.
"""
