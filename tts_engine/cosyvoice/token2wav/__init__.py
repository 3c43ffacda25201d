"""Speech tokens to sound, batched over all calls: who is let in (``admission``), who runs next (``scheduler``), who
holds which part of the caches (``block_manager``), what the device computes (``runner``, ``batch``), and the thread
between all that and the event loop (``worker``). Knows nothing of text and language model.
"""
