"""The engine in another process: gRPC at both ends, and the child process. This package decides nothing about
speech."""

import os

# gRPC reads both when it starts. By default it hooks into fork(), for programs whose children use gRPC too. Our
# children start another program at once, and the hooks would only print a line when a child starts while gRPC is busy.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Otherwise gRPC prints a line, outside our log, for each connection that fails TLS, so a stranger could fill the disk.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
