"""``server.workers: N``: the supervisor, and the workers that it starts."""
