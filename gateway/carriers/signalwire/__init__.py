"""SignalWire's cXML streams."""
