"""Speech without a call: text to an audio file or socket, voices, models and usage. This package knows no calls."""
