"""How much a clause breaks behind a short first chunk, and before its last one. CPU, a minute.

    python benchmarks/seam.py MODEL_FOLDER... [--clauses 40]     # any model directory, tiny ones too

``upstream`` makes the last chunk by full attention over everything, although the chunks before it were made under the
chunk mask; ``causal`` goes on as they did. Measured on the mel: the mean step (absolute difference, natural log) from
the last frame before the seam to the first after it, over the mean step between all other neighbours; 1 is no seam.
``difference``: between the two last chunks, over the standard deviation of the mel.

``first 8`` and ``first 15``: the clause begins with so many tokens that are made without those behind them
(``CosyVoiceConfig.first_hop``), and goes on as one pass would. ``difference``: to what one pass makes of these tokens.

On random weights this says how much the numbers jump, not whether one hears it or which of the two sounds better: for
that, run it on published weights and listen.
"""

# ruff: noqa: E402  # runs from a checkout without being installed
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "codecs")]

import numpy as np
import torch
from torch import Tensor

from tts_engine.cosyvoice.frontend.spk2info import read_spk2info
from tts_engine.cosyvoice.frontend.tokenizer import CosyTokenizer
from tts_engine.cosyvoice.models.flow import Flow
from tts_engine.cosyvoice.weights import load

CHUNK = 25
LOOK_AHEAD = 3
SHORT_HOPS = (8, 15)


def seams(flow: Flow, tokens: Tensor, prompt_mel: Tensor, embedding: Tensor, clause: int) -> dict[str, float]:
    """All of them for one clause of ``clause`` tokens, the last of ``tokens`` ``(n,)``."""
    frames = torch.tensor([prompt_mel.shape[1]])
    begin = len(tokens) - clause

    def mel(*, streaming: bool) -> Tensor:
        length = torch.tensor([len(tokens)])
        out = flow.render(tokens[None], length, prompt_mel, frames, embedding, streaming=streaming, final=True)
        return out[0, 2 * begin :]

    def step(before: Tensor, after: Tensor) -> float:
        joined = torch.cat([before, after])
        steps = (joined[1:] - joined[:-1]).abs().mean(dim=1)
        others = torch.cat([steps[: len(before) - 1], steps[len(before) :]])
        return float(steps[len(before) - 1] / others.mean())

    def difference(got: Tensor, want: Tensor) -> float:
        return float((got - want).abs().mean() / want.std())

    def beginning(hop: int) -> Tensor:
        length = torch.tensor([begin + hop + LOOK_AHEAD])
        out = flow.render(tokens[None, :length], length, prompt_mel, frames, embedding, streaming=True, final=False)
        return out[0, 2 * begin :]

    chunked, whole = mel(streaming=True), mel(streaming=False)
    cut = 2 * ((len(tokens) - LOOK_AHEAD) // CHUNK * CHUNK - begin)  # what has been made before the last chunk
    result = {
        "causal": step(chunked[:cut], chunked[cut:]),
        "upstream": step(chunked[:cut], whole[cut:]),
        "difference": difference(whole[cut:], chunked[cut:]),
    }
    for hop in SHORT_HOPS:
        first = beginning(hop)
        result[f"first {hop}"] = step(first, chunked[len(first) :])
        result[f"first {hop} of one pass"] = step(chunked[: len(first)], chunked[len(first) :])
        result[f"first {hop} difference"] = difference(first, chunked[: len(first)])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--clauses", type=int, default=40)
    arguments = parser.parse_args()
    for folder in arguments.folders:
        model = load(folder, parts=("flow",))
        flow = model.flow
        assert flow is not None
        tokenizer = CosyTokenizer.load(folder / "CosyVoice-BlankEN", version=model.config.version)
        voice = next(iter(read_spk2info(folder / "spk2info.pt", tokenizer).values()))
        rng = np.random.default_rng(0)
        results: list[dict[str, float]] = []
        for _ in range(arguments.clauses):
            clause = int(rng.integers(CHUNK + LOOK_AHEAD + 1, 120))
            speech = rng.integers(0, model.config.flow.vocab_size, clause)
            cut = (len(voice.flow_tokens) - LOOK_AHEAD) % CHUNK  # as the engine cuts it
            tokens = torch.from_numpy(np.concatenate([voice.flow_tokens[cut:], speech]).astype(np.int64))
            mel = torch.from_numpy(np.array(voice.flow_mel[2 * cut :]))[None]
            speaker = torch.from_numpy(np.array(voice.speaker))[None]
            results.append(seams(flow, tokens, mel, speaker, clause))
        quantiles = {
            f"{name} p{q}": round(float(np.percentile([r[name] for r in results], q)), 3)
            for name in results[0]
            for q in (50, 95)
        }
        note = "random weights" if model.config.random_weights else "published weights"
        print(json.dumps({"model": f"cosyvoice{model.config.version}", "weights": note, **quantiles}))


if __name__ == "__main__":
    main()
