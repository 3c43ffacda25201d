"""Which voices the embedded engine has, told without loading any. It does not know what they sound like."""

from __future__ import annotations

from pathlib import Path

from tts_engine.config import EmbeddedConfig

ENGLISH = "heart"
"""The only voice whose model is part of the package; the others would be downloaded."""

ESPEAK = "espeak:"
"""Espeak's voices are named by this and their language."""

MANDARIN_TABLES = "z[fm]_*.bin"
"""Files of Kokoro's Mandarin voices. A file's name without its ending is the voice's id."""


def voice_ids(config: EmbeddedConfig) -> list[str] | None:
    """Return the ids of all voices. None: only the running engine knows them, since they are inside of a package."""
    mandarin: list[str] = []
    if config.mandarin is not None:
        folder = config.mandarin.voices_folder
        mandarin = sorted(file.stem for file in Path(folder).expanduser().glob(MANDARIN_TABLES)) if folder else []
        if not mandarin:
            return None
    return [ENGLISH, *mandarin, *(ESPEAK + language for language in config.espeak)]
