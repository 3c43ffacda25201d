"""The Debian packages that the sounds come from. Nothing of them is in the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PACKAGES = (
    *(f"asterisk-core-sounds-{language}-wav" for language in ("en", "es", "fr", "it", "ru")),  # professional speakers
    *(f"asterisk-core-sounds-{language}" for language in ("en", "es", "fr", "it", "ru")),  # their words
    "asterisk-prompt-es-co",
    "asterisk-prompt-fr-armelle",
    "asterisk-prompt-it-menardi-wav",
    "asterisk-moh-opsound-wav",  # hold music
    "hedgewars-data",  # shouts, coughs, laughs, music, noises
    "ktuberling-data",  # words by volunteers
    "tuxpaint-stamps-default",  # phrases by volunteers; animals, vehicles, machines
)
"""All are in Debian 12 main; 500 MB."""


def fetch(folder: Path) -> None:
    """Download and unpack all packages into a folder with ``apt-get`` and ``dpkg``. Packages that are there stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        if (folder / "usr/share/doc" / package).exists():
            continue
        print(package, file=sys.stderr, flush=True)
        archives = folder / "archives"
        archives.mkdir(exist_ok=True)
        subprocess.run(["apt-get", "download", "-qq", package], cwd=archives, check=True)
        for archive in archives.glob(f"{package}_*.deb"):
            subprocess.run(["dpkg", "-x", os.fspath(archive), os.fspath(folder)], check=True)
            archive.unlink()
