"""The ways to whoever leads a dialogue: we dial a manager, a manager dials in, or a built-in script leads. This room
knows the dialogue protocol, and nothing of the playout."""
