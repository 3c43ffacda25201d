"""A voice model in a process of its own, from both sides: the engine's process has the text, the codecs and gRPC, the
model's process has the device. This room decides nothing about speech, and knows no model.

The threads that feed a device hold the interpreter's lock for some microseconds a hundred times a step. In one process
with everything else that a turn needs, each of these times would be a wait for the event loop, and the loop's work
would be a wait for the device.
"""
