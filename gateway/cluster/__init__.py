"""Several processes that serve one address: their shared state, and passing requests between them."""
