"""REST, webhooks and pages. This room answers requests and decides who may ask. It finds calls through the
directory."""
