"""Ways to whoever leads a dialogue: dialled out, dialled in, a built-in script. Knows the protocol, not the playout."""
