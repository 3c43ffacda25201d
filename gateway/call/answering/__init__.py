"""Decides who or what has answered an outgoing call, from speech, words, tones and time. It knows neither the leg nor
the carrier."""
