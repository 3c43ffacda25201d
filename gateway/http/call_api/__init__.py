"""Calls over REST: placed, expected, listed, attached to a manager, handed on and ended. This room synthesises
nothing."""
