"""Connections to dialogue managers: the gateway dials a manager, a manager dials in, or a built-in script takes its
place. This room knows the dialogue protocol and nothing of the playout."""
