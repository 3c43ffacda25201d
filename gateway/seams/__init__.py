"""Protocols and values that rooms share. Nothing else is here: no logic, no I/O, no clock."""
