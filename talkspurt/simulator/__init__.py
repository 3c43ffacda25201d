"""A simulated caller with a simulated carrier. It shares no code with the gateway, so that no error cancels out."""
