"""Our entry point for vLLM, as an installed talkspurt would bring it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


@contextmanager
def plugin_path(folder: Path, *more: Path) -> Iterator[None]:
    """vLLM finds plugins by installed metadata, in each of its processes; these tests also run from a bare clone.

    Args:
        folder: where the metadata is written.
        more: further folders that vLLM's processes import from.
    """
    info = folder / "path" / "talkspurt_vllm-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: talkspurt-vllm\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\ntalkspurt = tts_engine.cosyvoice.vllm_plugin:register\n"
    )
    paths: Sequence[Path] = [info.parent, *more]
    with pytest.MonkeyPatch.context() as patch:
        seen = os.pathsep.join(map(str, [*paths, ROOT, ROOT / "codecs"]))
        patch.setenv("PYTHONPATH", os.pathsep.join([seen, os.environ.get("PYTHONPATH", "")]))
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        for path in paths:
            patch.syspath_prepend(path)
        yield
