"""The engine in another process: gRPC at both ends, and the child process. This room decides nothing about speech."""
