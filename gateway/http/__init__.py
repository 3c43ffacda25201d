"""REST, webhooks and pages: requests in, answers out. Decides who may ask; calls go by way of the directory."""
