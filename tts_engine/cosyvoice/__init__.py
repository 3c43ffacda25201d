"""The CosyVoice2 and Fun-CosyVoice3 engine: text front end, language model, token-to-wave (flow and vocoder) and
voices."""
