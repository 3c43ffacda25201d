"""The engine in another process: gRPC at both ends, and the child process. This room decides nothing about speech."""

import os

# gRPC reads both when it starts. It hooks itself into fork(), for programs whose children go on using it; ours start
# another program at once, and the hooks only print a line when a child starts while gRPC is at work.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Otherwise gRPC prints a line past our log for each connection that fails TLS, so a stranger could fill the disk.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
