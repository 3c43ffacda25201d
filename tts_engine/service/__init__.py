"""The engine in another process: gRPC at both ends, and the child process. Adds no decision about speech."""
