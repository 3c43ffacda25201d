"""The other end of an outgoing call: its tones, and who or what has answered. This room decides from sound, words and
time; it knows neither the leg nor the carrier."""
