"""Text to token ids, and reference audio to prompt features. Decides the wording that is read aloud; knows no GPU."""
