"""Writes the standard load, or more of its kind: ``talkspurt.bench.standard_load`` says what it is.

python benchmarks/load/generate.py > benchmarks/load/standard.jsonl
"""

from __future__ import annotations

import argparse
import json

from talkspurt.bench.standard_load import SEED, TURNS, turns

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    for turn in turns(args.turns, args.seed):
        print(json.dumps(turn))
