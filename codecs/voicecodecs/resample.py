"""A streaming resampler with a stated delay: a windowed-sinc FIR filter, computed in blocks as one matrix product.

The filter between the rates ``in`` and ``out`` is one linear-phase low-pass. With ``low = min(in, out)``, it passes
0 to 0.425 ``low`` within 0.09 dB (3.4 kHz at 8 kHz) and keeps everything from ``low`` / 2 up below -72 dB, so neither
aliases nor images reach the listener. Its half length is 28.8 periods of ``low``: 3.6 ms at 8 kHz, 1.8 ms at 16 kHz,
1.2 ms at 24 kHz. This is the shortest Kaiser window that meets both numbers; half length, shape and cut-off were
scanned together.

Timing: output sample ``n`` is the input's value at time ``n / out``. The filter has no delay of its own because it
looks ``delay_s`` ahead. So the first call already returns all but its last ``delay_s``, a click at input second ``t``
comes out at output second ``t``, and :meth:`Resampler.flush` returns the tail that was kept.

Exactness: the same samples give the same bits, however they are cut into chunks. A BLAS product may round differently
for another matrix shape. Therefore all products have one fixed shape, on a grid that begins at the start of the stream,
and an incomplete block is computed with zeros in the place of samples whose weight is zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from voicecodecs.pcm import require

_HALF_PERIODS = 28.8
_CUTOFF = 0.45625
_KAISER_BETA = 6.9
_MAX_PHASES = 1000
"""Most phases of a pair of rates. 22.05 and 44.1 kHz need at most 441. The coefficient table grows with the square."""


@dataclass(frozen=True, slots=True)
class _Kernel:
    """The filter between two rates, laid out for block products. All resamplers of that pair share it."""

    up: int
    down: int
    """out / in in lowest terms is ``up / down``."""
    half: int
    """Half length of the filter, samples at ``up`` times the input rate."""
    matrix: NDArray[np.float32]
    """Shape ``(inputs a row reads, outputs a row makes)``."""
    advance: int
    """Input samples from one row to the next."""
    lead: int
    """Input samples that a row reads before its own first one."""
    rows: int
    """Rows per product."""


@lru_cache(maxsize=64)
def _kernel(rate_in: int, rate_out: int) -> _Kernel:
    divisor = math.gcd(rate_in, rate_out)
    up, down = rate_out // divisor, rate_in // divisor
    if max(up, down) > _MAX_PHASES:
        raise ValueError(
            f"cannot resample {rate_in} to {rate_out} Hz: {up}/{down} in lowest terms, at most {_MAX_PHASES} supported"
        )
    low, grid = min(rate_in, rate_out), rate_in * up
    half = int(_HALF_PERIODS * grid / low)
    # A row makes enough outputs (whole periods of phases) that the overlap of rows is read only about twice.
    periods = max(1, round(2 * half / up / down * 0.5), math.ceil(16 / up))
    outputs, advance = up * periods, down * periods
    lead = half // up
    inputs = lead + ((outputs - 1) * down + half) // up + 1
    # Distance of each input of a row to each output of it, on the fine grid where both are whole numbers.
    offset = np.arange(outputs) * down - (np.arange(inputs)[:, None] - lead) * up
    edge = np.maximum(0.0, 1.0 - (offset / half) ** 2)
    weight = np.sinc(2 * _CUTOFF * low / grid * offset) * np.i0(_KAISER_BETA * np.sqrt(edge))
    weight[np.abs(offset) > half] = 0.0
    weight /= weight.sum(axis=0)  # every phase passes DC exactly, so a constant gets no tone from the phase pattern
    rows = max(2, min(8, round(0.02 * rate_out / outputs)))
    return _Kernel(up, down, half, np.ascontiguousarray(weight, np.float32), advance, lead, rows)


def resample(pcm: NDArray[np.float32], rate_in: int, rate_out: int) -> NDArray[np.float32]:
    """Convert a whole sound of shape ``(samples,)``; arguments and errors are those of :class:`Resampler`."""
    resampler = Resampler(rate_in, rate_out)
    return np.concatenate((resampler.process(pcm), resampler.flush()))


class Resampler:
    """One stream from ``rate_in`` to ``rate_out``, chunk by chunk. Not thread-safe."""

    def __init__(self, rate_in: int, rate_out: int) -> None:
        """
        Args:
            rate_in: Hz of the samples that :meth:`process` takes.
            rate_out: Hz of the samples that it returns.

        Raises:
            ValueError: a rate is not positive, or the ratio has more than 1000 phases.
        """
        if rate_in <= 0 or rate_out <= 0:
            raise ValueError(f"sample rates must be positive, got {rate_in} and {rate_out} Hz")
        self.rate_in = rate_in
        self.rate_out = rate_out
        self._kernel = _kernel(rate_in, rate_out) if rate_in != rate_out else None
        # Input from the first row of the current product on; the stream is preceded by silence.
        self._waiting_pcm = np.zeros(0, np.float32)
        self._restart()

    @property
    def delay_s(self) -> float:
        """Seconds of input that are kept until more follows: the filter's group delay. 0 for equal rates."""
        return self._kernel.half / (self._kernel.up * self.rate_in) if self._kernel else 0.0

    def process(self, pcm: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take the next chunk, of any length; return all output samples that later input cannot change.

        Args:
            pcm: shape ``(samples,)``, float32, at ``rate_in``.

        Raises:
            ValueError: not one-dimensional float32.
        """
        require(pcm, np.float32)
        kernel = self._kernel
        self._received += len(pcm)
        if kernel is None:
            return pcm.copy()
        self._waiting_pcm = np.concatenate((self._waiting_pcm, pcm))
        # Output n reads inputs up to (n * down + half) / up.
        settled = -((kernel.half - self._received * kernel.up) // kernel.down)
        return self._emit(kernel, max(settled, 0))

    def flush(self) -> NDArray[np.float32]:
        """End the stream: return the tail, computed as if silence followed, and start again.

        The number of all returned samples is ``round(samples given * rate_out / rate_in)``.
        """
        kernel = self._kernel
        tail = np.zeros(0, np.float32)
        if kernel is not None:
            tail = self._emit(kernel, round(Fraction(self._received * kernel.up, kernel.down)))
        self._restart()
        return tail

    def _restart(self) -> None:
        self._received = 0
        self._sent = 0
        self._waiting_pcm = np.zeros(self._kernel.lead if self._kernel else 0, np.float32)

    def _emit(self, kernel: _Kernel, end: int) -> NDArray[np.float32]:
        """Return the output samples from ``_sent`` up to ``end``."""
        if end <= self._sent:
            return np.zeros(0, np.float32)
        inputs, outputs = kernel.matrix.shape
        product = kernel.rows * outputs
        first = self._sent // product
        products = -(-end // product) - first
        rows = products * kernel.rows
        missing = (rows - 1) * kernel.advance + inputs - len(self._waiting_pcm)
        source = (
            np.concatenate((self._waiting_pcm, np.zeros(missing, np.float32))) if missing > 0 else self._waiting_pcm
        )
        windows = np.lib.stride_tricks.as_strided(
            source, (rows, inputs), (kernel.advance * source.itemsize, source.itemsize), writeable=False
        )
        # The rows are copied because BLAS takes no overlapping rows, and stacked because all products have one shape.
        stack = np.ascontiguousarray(windows).reshape(products, kernel.rows, inputs)
        made = (stack @ kernel.matrix).reshape(-1)
        emitted = made[self._sent - first * product : end - first * product]
        self._sent = end
        self._waiting_pcm = self._waiting_pcm[(end // product - first) * kernel.rows * kernel.advance :]
        return emitted
