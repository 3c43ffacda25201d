"""Sound that is not synthesised: files are fetched or read, decoded, and played as utterances. Knows no calls."""
