"""Rewrites of ONNX graphs that make the embedded voices faster. Graph in, graph out: no sound, no session."""
