"""Text before it is speech: what can be spoken, where a stream of tokens may be cut, how numbers are read. Pure."""
