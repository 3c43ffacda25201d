"""Loads CosyVoice by its configuration. Also the main program of a model's own process."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from talkspurt.log import configure_as_parent
from tts_engine.config import EngineConfig, ModelConfig
from tts_engine.cosyvoice.kernels import compile_cache
from tts_engine.errors import Unavailable
from tts_engine.synthesizer import Synthesizer
from tts_engine.voice_model import child


def load(
    config: ModelConfig, whole: EngineConfig, section: str, observer: Any, *, memory_share: float = 1.0
) -> Synthesizer:
    """Load a CosyVoice model into this process.

    Args:
        memory_share: see ``EngineConfig``.
        section: name of ``config`` within the configuration, for messages.
        observer: a ``tts_engine.cosyvoice.loading.Observer``.

    Raises:
        Unavailable: the folder cannot be used, or holds another model.
    """
    try:
        from tts_engine.cosyvoice.loading import load_synthesizer
    except ModuleNotFoundError as exc:
        raise Unavailable(f"engine {config.kind} needs the extra [cosyvoice]: no module {exc.name!r}") from exc

    synthesizer = load_synthesizer(
        Path(config.model_folder),
        config.cosyvoice,
        device=config.device,
        voices_folder=voices_folder(whole),
        export_folder=compile_cache.folder(whole.cache_folder) / "vllm-models",
        observer=observer,
        memory_share=memory_share,
    )
    if synthesizer.name != config.kind:
        raise Unavailable(f"{section}.model_folder {config.model_folder} is {synthesizer.name}, expected {config.kind}")
    return synthesizer


def voices_folder(whole: EngineConfig) -> Path:
    """Return the folder of the voices that users register."""
    if whole.voices_folder:
        return Path(whole.voices_folder)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "talkspurt" / "voices"


def settings(config: ModelConfig, whole: EngineConfig, section: str) -> str:
    """Return the settings of the child process, as JSON, without the engine's secrets."""
    return json.dumps(
        {
            "model": config.model_dump(mode="json", include=set(ModelConfig.model_fields)),
            "engine": whole.model_dump(mode="json", include={"voices_folder", "cache_folder"}),
            "section": section,
            "memory_share": whole.memory_share,
        }
    )


def told(text: str) -> tuple[ModelConfig, EngineConfig, str, float]:
    """Return the arguments of ``settings``, and the model's share of the memory. The engine's configuration holds only
    what a model needs."""
    given = json.loads(text)
    model, engine = ModelConfig.model_validate(given["model"]), EngineConfig.model_validate(given["engine"])
    return model, engine, given["section"], given["memory_share"]


def main(arguments: list[str]) -> int:
    """Run the child process. Arguments: the file with its settings, and its parent's process id."""
    configure_as_parent()
    file, parent_pid = Path(arguments[0]), int(arguments[1])
    config, whole, section, share = told(file.read_text())
    return child.run(file, partial(load, config, whole, section, memory_share=share), parent_pid=parent_pid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
