"""Lists the voices of the embedded engine without loading any."""

from __future__ import annotations

from pathlib import Path

from tts_engine.config import EmbeddedConfig

ENGLISH = "heart"
"""The only voice whose model is part of the package."""

ESPEAK = "espeak:"
"""Prefix of espeak's voice ids; the language follows."""

MANDARIN_TABLES = "z[fm]_*.bin"
"""Files of Kokoro's Mandarin voices. A file's name without its ending is the voice's id."""


def voice_ids(config: EmbeddedConfig) -> list[str] | None:
    """Return the ids of all voices. None: only the running engine knows them, because a package holds them."""
    mandarin: list[str] = []
    if config.mandarin is not None:
        folder = config.mandarin.voices_folder
        mandarin = sorted(file.stem for file in Path(folder).expanduser().glob(MANDARIN_TABLES)) if folder else []
        if not mandarin:
            return None
    return [ENGLISH, *mandarin, *(ESPEAK + language for language in config.espeak)]
