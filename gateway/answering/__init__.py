"""The tones on the line of an outgoing call: recording tones, and those that are none. This room decides from sound; it
knows neither the leg nor the carrier."""
