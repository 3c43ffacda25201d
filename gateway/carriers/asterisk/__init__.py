"""Asterisk's two ways to carry a call: chan_websocket and AudioSocket."""
