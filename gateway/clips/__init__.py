"""Sound that is not synthesised: it is fetched or read, decoded, and played as an utterance. Knows no call."""
