"""Sound that is not synthesised: fetched or read, decoded, and played as an utterance. Knows no call."""
