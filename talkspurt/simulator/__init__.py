"""A simulated caller behind a simulated carrier. Shares no code with the gateway, so that no error cancels out."""
