"""The input of a prefill on a GPU: prompts concatenated along one axis of positions ("lines"), without padding between
them.

Everything is in one int64 buffer, so that one copy takes it to the device. Nothing here loops over positions in Python,
because the thread shares the interpreter lock with the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tts_engine.cosyvoice.lm.api import SequencePrefill

ROWS = 16
"""Most prompts of one prefill."""
LINES = (*range(128, 256, 32), *range(256, 1024, 64), *range(1024, 2048, 128), *range(2048, 4097, 256))
"""Numbers of lines (positions of all prompts together) that have a CUDA graph. Other numbers are padded to the next
size. A longer single prompt runs without a graph."""
BLOCK = 64
"""Most lines of a block. One program of the attention kernel takes the queries of one block."""
_ROW_COLUMNS, _LINE_COLUMNS, _BLOCK_COLUMNS = 8, 3, 4


class FlatPrompts(NamedTuple):
    """Views of the buffer, all int64: NumPy's arrays on the host, tensors on the device.

    Lines after the last prompt are padding. Their positions are negative: they are not stored and attend to nothing.
    """

    rows: Any
    """``(8, ROWS)``: slot, prompt length, seed, ``min_tokens``, line of the last id, slot from which the prefix is
    read, slot to which it is written, prefix length. Slot -1: not read or written."""
    lines: Any
    """``(3, lines)``: joined id, slot, position."""
    blocks: Any
    """``(4, blocks)``: slot, first line, end line of the prompt (exclusive), position of the first line. Each block
    belongs to one prompt or to padding. Unused blocks are all 0."""


def buffer_size(lines: int) -> int:
    """Return the number of int64 values in the buffer of a prefill of ``lines`` lines."""
    blocks = (
        lines + (ROWS + 1) * (BLOCK - 1)
    ) // BLOCK  # the last block of each prompt and of the padding may be partly filled
    return _ROW_COLUMNS * ROWS + _LINE_COLUMNS * lines + _BLOCK_COLUMNS * blocks


def views(buffer: Any, lines: int) -> FlatPrompts:
    """Return the parts of a buffer, an array or a tensor ``(buffer_size(lines),)``."""
    a = _ROW_COLUMNS * ROWS
    b = a + _LINE_COLUMNS * lines
    return FlatPrompts(
        buffer[:a].reshape(_ROW_COLUMNS, ROWS),
        buffer[a:b].reshape(_LINE_COLUMNS, lines),
        buffer[b:].reshape(_BLOCK_COLUMNS, -1),
    )


def lay_out(
    buffer: NDArray[np.int64],
    lines: int,
    admissions: Sequence[SequencePrefill],
    *,
    read: Sequence[int],
    written: Sequence[int],
    scratch: int,
) -> None:
    """Fill a buffer.

    Args:
        buffer: ``(buffer_size(lines),)``.
        admissions: up to ``ROWS``. If the prefix of a prompt is read from a slot, only the ids after it get lines.
        read, written: slot of the prefix of each, or -1.
        scratch: slot for unused rows.
    """
    rows, (ids, slots, positions), blocks = views(buffer, lines)
    used = len(admissions)
    rows[:] = np.array([scratch, 1, 0, 0, 0, -1, -1, 0])[:, None]
    rows[:, :used] = np.array(
        [
            (a.slot, len(a.ids), a.seed, a.min_tokens, 0, source, target, a.shared)
            for a, source, target in zip(admissions, read, written, strict=True)
        ],
        np.int64,
    ).T

    # Each prompt is a segment of lines; the padding is one more.
    begin = [a.shared if source >= 0 else 0 for a, source in zip(admissions, read, strict=True)]
    end = np.array([len(a.ids) - first for a, first in zip(admissions, begin, strict=True)] + [0]).cumsum()
    rows[4, :used] = end[:-1] - 1
    total, end[-1] = end[-1], lines
    slot, position = np.array([*(a.slot for a in admissions), scratch]), np.array([*begin, -lines])
    start = np.concatenate([[0], end[:-1]])
    count = end - start
    np.concatenate([a.ids[first:] for a, first in zip(admissions, begin, strict=True)], out=ids[:total])
    ids[total:] = 0
    slots[:] = slot.repeat(count)
    positions[:] = np.arange(lines) + (position - start).repeat(count)

    per_segment = -(-count // BLOCK)
    segment = np.arange(used + 1).repeat(per_segment)
    first_block = per_segment.cumsum() - per_segment
    ahead = BLOCK * (np.arange(len(segment)) - first_block[segment])
    blocks[:] = 0
    blocks[:, : len(segment)] = slot[segment], start[segment] + ahead, end[segment], position[segment] + ahead
