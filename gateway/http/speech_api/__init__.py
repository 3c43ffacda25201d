"""Speech without a call: text to an audio file or socket, and the voices, models and usage that belong to it. This room
knows no calls."""
