"""Holds the sample configurations that the package carries. They are links to `configs/`; a wheel has the files.

It knows no setting. `talkspurt demo` serves one of them, `talkspurt config init` writes the others for a user.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent

DEMO = FOLDER / "demo.yaml"
