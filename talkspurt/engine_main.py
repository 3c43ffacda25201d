"""The speech engine as a program: ``talkspurt engine``, and the child process that the gateway starts."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from talkspurt.build import make_engine
from tts_engine.config import EngineConfig
from tts_engine.runner import run, run_child


def run_engine(config: EngineConfig) -> int:
    """Serve ``config`` at ``config.listen`` until SIGTERM; returns the exit code."""
    return run(config, make_engine)


def main(file: str, parent_pid: str) -> int:
    """The gateway's child: configuration as JSON in ``file`` (see ``tts_engine.process.EngineProcess``)."""
    logging.basicConfig(level=logging.INFO)
    config = EngineConfig.model_validate_json(Path(file).read_text())
    return run_child(config, make_engine, parent_pid=int(parent_pid))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
