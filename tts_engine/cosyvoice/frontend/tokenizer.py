"""Turns text into the language model's ids: Qwen2 byte-level BPE with CosyVoice's added tokens.

The tokenizer is the folder ``CosyVoice-BlankEN`` of an official model directory (``vocab.json``, ``merges.txt``). The
added tokens are not in that folder. Their ids follow the base vocabulary in the order of ``special_tokens.json``: the
first 20 for version 2, all 281 for version 3. So ``<|endofprompt|>`` is 151646 in the official vocabulary of 151643
entries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal, Self

from tts_engine.errors import SynthesisFailed

Version = Literal[2, 3]

END_OF_PROMPT = "<|endofprompt|>"

# Qwen2's pre-tokenizer: contractions, letters with one leading mark, single digits, punctuation, white space.
_PRE_TOKENIZE = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@cache
def special_tokens(version: Version) -> tuple[str, ...]:
    """Return the added tokens of a model version in the order of their ids."""
    tokens: list[str] = json.loads(files(__package__).joinpath("special_tokens.json").read_text("utf-8"))
    return tuple(tokens[:20] if version == 2 else tokens)


@cache
def control_pattern() -> re.Pattern[str]:
    """Return a pattern for one inline control of any version, like ``[laughter]``, ``<strong>``, ``[j]``,
    ``<|...|>``."""
    longest_first = sorted(special_tokens(3), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)))


class CosyTokenizer:
    """Encodes and decodes text. Safe to share between threads."""

    def __init__(self, vocab: Mapping[str, int], merges: Sequence[tuple[str, str]], *, version: Version) -> None:
        from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
        from tokenizers import Regex as TokenizerRegex

        self._tokenizer = Tokenizer(models.BPE(vocab=dict(vocab), merges=list(merges)))
        self._tokenizer.normalizer = normalizers.NFC()
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(TokenizerRegex(_PRE_TOKENIZE), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        self._tokenizer.decoder = decoders.ByteLevel()
        added = special_tokens(version)
        self._tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in added])
        self.base_size = len(vocab)
        """Number of entries in the base vocabulary. The first added token has this id."""
        self.size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        """Number of all ids. The text embedding needs at least as many rows."""
        ids = [self._tokenizer.token_to_id(token) for token in added]
        if ids != list(range(self.base_size, self.base_size + len(added))):
            # The vocabulary has holes or contains an added token already, so every id after it would be wrong.
            raise SynthesisFailed(f"tokenizer: added tokens got ids from {ids[0]}, expected from {self.base_size}")
        self.special_ids = dict(zip(added, ids, strict=True))
        self.end_of_prompt_id = self.special_ids[END_OF_PROMPT]

    @classmethod
    def load(cls, folder: Path, *, version: Version) -> Self:
        """Read ``vocab.json`` and ``merges.txt`` of a ``CosyVoice-BlankEN`` folder.

        Raises:
            SynthesisFailed: a file is missing or cannot be read.
        """
        if missing := [name for name in ("vocab.json", "merges.txt") if not (folder / name).is_file()]:
            raise SynthesisFailed(f"tokenizer folder {folder} lacks {', '.join(missing)}")
        try:
            vocab = json.loads((folder / "vocab.json").read_text("utf-8"))
            lines = (folder / "merges.txt").read_text("utf-8").split("\n")
            merges = [_pair(line) for line in lines if line.strip() and not line.startswith("#version")]
            return cls(vocab, merges, version=version)
        except (ValueError, TypeError) as exc:
            raise SynthesisFailed(f"tokenizer folder {folder} cannot be read: {exc}") from exc

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``. An inline control becomes one id. No begin or end token is added. An unpaired
        surrogate is read as U+FFFD."""
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except TypeError:
            whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            ids = self._tokenizer.encode(whole, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, added tokens included."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def _pair(line: str) -> tuple[str, str]:
    left, right = line.rstrip("\r").split(" ")
    return left, right


_TINY_WORDS = ("the", "and", "you", "ing", "er", "hello", "order", "call", "number", "thank")


def make_tiny_tokenizer(folder: Path, *, config: Mapping[str, object] | None = None) -> int:
    """Write a small, valid Qwen2-style tokenizer folder and return the size of its base vocabulary.

    It has the 256 byte symbols and the merges of ten frequent words, so any text can be encoded. Added tokens follow
    the base vocabulary as in the official one. The text embedding of a tiny model therefore needs the returned size
    plus ``len(special_tokens(version))`` rows.

    Args:
        folder: the folder; created if missing.
        config: the backbone's hyper-parameters for ``config.json``. If ``vocab_size`` is absent, it becomes the number
            of rows that version 3 needs.
    """
    symbols = _byte_symbols()
    vocab = {symbol: index for index, symbol in enumerate(symbols)}
    merges: list[str] = []
    for word in _TINY_WORDS:
        left = word[0]
        for right in [*word[1:], ""]:
            # The whole word also merges with a space before it.
            left, right = (left, right) if right else ("\u0120", left)
            if left + right not in vocab:
                vocab[left + right] = len(vocab)
                merges.append(f"{left} {right}")
            left += right
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), "utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), "utf-8")
    added = {
        str(len(vocab) + index): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for index, token in enumerate(_CHATML)
    }
    tokenizer_config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "eos_token": _CHATML[0],
        "pad_token": _CHATML[0],
        "unk_token": None,
        "model_max_length": 32768,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2), "utf-8")
    model = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": len(vocab) + len(special_tokens(3)),
        **(config or {}),
    }
    (folder / "config.json").write_text(json.dumps(model, indent=2), "utf-8")
    return len(vocab)


def _byte_symbols() -> list[str]:
    """Return GPT-2's 256 symbols for bytes: printable Latin-1 bytes map to themselves, all others to characters from
    U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(0x100 + index) for index in range(len(others))]
