"""Rewrites of ONNX graphs that make the embedded voices faster. Functions from graph to graph; they run no model."""
