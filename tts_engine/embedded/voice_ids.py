"""Lists the voices of the embedded engine without loading any."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tts_engine.config import EmbeddedConfig

ENGLISH = "heart"
"""The only voice whose model is part of the package."""

ESPEAK = "espeak:"
"""Prefix of espeak's voice ids; the language follows."""

KOKORO_LANGUAGES = {
    "a": "en-US", "b": "en-GB", "e": "es", "f": "fr-FR", "i": "it-IT", "j": "ja-JP", "p": "pt-BR", "z": "zh-CN"
}  # fmt: skip
"""First letter of a Kokoro voice -> language tag. The other voices have no reader here."""

_READERS = {
    **dict.fromkeys("ep", ("piper_plus_g2p", "kokoro")),
    **dict.fromkeys("fi", ("espeakng_loader", "espeak")),
    "j": ("pyopenjtalk", "japanese"),
}
"""First letter of a voice -> the package without which it cannot be spoken, and the extra that brings it."""


def _files(folder: str) -> list[Path]:
    return sorted(Path(folder).glob(f"[{''.join(KOKORO_LANGUAGES)}][fm]_*.bin"))


def _missing_extra(file: Path) -> str:
    package, extra = _READERS.get(file.name[0], ("", ""))
    return extra if package and importlib.util.find_spec(package) is None else ""


def missing_extras(folder: str) -> list[str]:
    """Return the names of the extras without which some voices of a folder cannot be spoken."""
    return sorted({extra for file in _files(folder) if (extra := _missing_extra(file))})


def kokoro_tables(folder: str) -> list[Path]:
    """Return the files of the voices that can be spoken, by name; a file's name without its ending is the voice's id.

    Args:
        folder: folder with the tables of ``kokoro-js``. Spanish and Portuguese need the extra [kokoro], French and
            Italian [espeak], Japanese [japanese].
    """
    return [file for file in _files(folder) if not _missing_extra(file)]


def voice_ids(config: EmbeddedConfig) -> list[str] | None:
    """Return the ids of all voices. None: only the running engine knows them, because a package holds them."""
    mandarin: list[str] = []
    if config.mandarin is not None:
        folder = config.mandarin.voices_folder
        mandarin = [file.stem for file in kokoro_tables(folder)] if folder else []
        if not mandarin:
            return None
    return [ENGLISH, *mandarin, *(ESPEAK + language for language in config.espeak)]
