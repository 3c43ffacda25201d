"""What CosyVoice 2 and 3 need around their networks: text to ids, reference audio to prompt features."""
