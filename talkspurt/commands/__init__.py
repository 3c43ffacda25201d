"""The commands that need one module each. A larger command has a room of its own, such as ``bench``."""
