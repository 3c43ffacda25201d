"""``python -m talkspurt.reference docs`` writes the pages into a folder."""

from __future__ import annotations

import sys
from pathlib import Path

from talkspurt.reference import commands, http_api, metrics

PAGES = {"http-api.md": http_api.markdown, "metrics.md": metrics.markdown, "commands.md": commands.markdown}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path(sys.argv[1]) / name).write_text(page())
