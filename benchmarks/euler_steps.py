"""How far the mel moves when the flow takes fewer Euler steps than the published ten. CPU, a minute with tiny models.

    python benchmarks/euler_steps.py MODEL_FOLDER... [--steps 4,5,6,8,20] [--clauses 10]

``relative`` is the norm of the difference to ten steps over the norm of the mel about its mean; ``max`` the largest
difference of one value (natural log). 20 steps show how far ten are from where the solver converges.

On random weights this is the solver's error on some field, not on speech: published weights bend the paths otherwise,
and what is heard of it only listening tells.
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
from tts_engine.cosyvoice.weights import load

PUBLISHED_STEPS = 10


def mels(folder: Path, steps: int, clauses: int) -> Tensor:
    """New frames of the same clauses, all in one: ``(frames, 80)``."""
    model = load(folder, parts=("flow",), steps=steps)
    assert model.flow is not None
    tokenizer = CosyTokenizer.load(folder / "CosyVoice-BlankEN", version=model.config.version)
    voice = next(iter(read_spk2info(folder / "spk2info.pt", tokenizer).values()))
    prompt = torch.from_numpy(np.array(voice.flow_mel))[None]
    rng = np.random.default_rng(0)
    out = []
    for _ in range(clauses):
        speech = rng.integers(0, model.config.flow.vocab_size, 60)
        tokens = torch.from_numpy(np.concatenate([voice.flow_tokens, speech]).astype(np.int64))[None]
        length, frames = torch.tensor([tokens.shape[1]]), torch.tensor([prompt.shape[1]])
        speaker = torch.from_numpy(np.array(voice.speaker))[None]
        mel = model.flow.render(tokens, length, prompt, frames, speaker, streaming=True, final=True)
        out.append(mel[0, prompt.shape[1] :])
    return torch.cat(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--steps", default="4,5,6,8,20")
    parser.add_argument("--clauses", type=int, default=10)
    arguments = parser.parse_args()
    for folder in arguments.folders:
        want = mels(folder, PUBLISHED_STEPS, arguments.clauses)
        spread = (want - want.mean()).norm()
        for steps in map(int, arguments.steps.split(",")):
            difference = mels(folder, steps, arguments.clauses) - want
            relative, most = float(difference.norm() / spread), float(difference.abs().max())
            print(
                json.dumps(
                    {"model": folder.name, "steps": steps, "relative": round(relative, 4), "max": round(most, 3)}
                )
            )


if __name__ == "__main__":
    main()
