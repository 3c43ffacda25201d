"""Speech tokens to sound, batched over all calls: who runs next, who is let in, and the thread that owns the device."""
