"""A voice model in a process of its own, from both sides: the engine's process has the text, the codecs and gRPC, the
model's process has the device. This package decides nothing about speech, and knows no model.

The threads that feed a device hold the interpreter's lock for some microseconds a hundred times in each step. In one
process with everything else, each of these times would delay the event loop, and the loop's work would delay the
device.
"""
