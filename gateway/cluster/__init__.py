"""Several processes that serve one address: what they know together, and how one passes a request on to another."""
