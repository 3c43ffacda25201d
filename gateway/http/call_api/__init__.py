"""Calls over REST: place, announce, list, attach, message, hand off and end them."""
