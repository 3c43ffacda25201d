"""The interleaved layout for streamed text: five text ids and fifteen speech ids in turns. A state machine without
tensors.

The model asks for the next text block with the id ``fill``. The machine returns ``FeedPositions`` values, which say
what to feed, and takes the ids that were drawn. It waits if text is missing. At the end of the text it feeds the rest
and the task embedding, and generation continues to the end of speech.

It behaves like upstream, including its quirks: the window of the repetition rule contains the fills; if the text ends
at a fill, the last embedding is fed again; with a system prefix (CosyVoice3) and no prompt speech, decoding starts
before the first text block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from tts_engine.cosyvoice.models.config import LanguageModelConfig


class PositionKind(Enum):
    SOS = auto()
    TEXT = auto()
    SPEECH = auto()
    TASK = auto()


@dataclass(frozen=True, slots=True)
class Item:
    """One position to embed: a text id, a speech id, or one of the two marks, which do not use ``id``."""

    kind: PositionKind
    id: int = 0


@dataclass(frozen=True, slots=True)
class FeedPositions:
    """A command to feed these positions and then take one id."""

    items: tuple[Item, ...]
    forced: int | None
    """The id to take without drawing. None: draw one."""
    may_end: bool
    """True if the model may end here. False: upstream's end mask is on (``stop_mask(config, upstream=True)``)."""


class UnexpectedControlId(ValueError):
    """The model drew a control id that is not allowed here."""


class Bistream:
    """The state of one utterance. Call ``next`` until it returns None (text is missing, or the utterance has finished).
    Pass the id of each ``FeedPositions`` to ``drawn``."""

    def __init__(
        self, config: LanguageModelConfig, *, prompt_text: Sequence[int], prompt_speech: Sequence[int]
    ) -> None:
        """Raises:
        ValueError: if CosyVoice3's prompt text has no end-of-prompt id.
        """
        self._config = config
        prefix: Sequence[int] = ()
        if config.version == 3:
            if config.end_of_prompt_id not in prompt_text:
                raise ValueError(
                    f"the prompt text of CosyVoice3 lacks the id {config.end_of_prompt_id} (<|endofprompt|>)"
                )
            cut = list(prompt_text).index(config.end_of_prompt_id) + 1
            prefix, prompt_text = prompt_text[:cut], prompt_text[cut:]
        self._pending = [Item(PositionKind.SOS), *(Item(PositionKind.TEXT, i) for i in prefix)]
        self._text = deque(prompt_text)
        self._prompt_speech = deque(prompt_speech)
        block = config.speech_block
        self._next_fill = (len(prompt_speech) // block + 1) * block - len(prompt_speech)
        self._out: list[int] = []
        self._started = False
        self._ended = False
        self._decoding = False
        self._last = False
        self.finished = False

    @property
    def history(self) -> list[int]:
        """All ids taken so far, including fills; input of the repetition rule."""
        return self._out

    @property
    def until_fill(self) -> int:
        """Number of ids that may be drawn before a fill is taken without drawing. The last block has no fill."""
        return self._next_fill - len(self._out)

    def push_text(self, ids: Sequence[int]) -> None:
        self._text.extend(ids)
        self._started = self._started or bool(ids)

    def end_text(self) -> None:
        self._ended = True

    def next(self) -> FeedPositions | None:
        """Return the next feed. None: text is missing, or the utterance has finished."""
        if self.finished:
            return None
        if not self._decoding and not self._begin():
            return None
        forced = self._config.fill if not self._last and len(self._out) == self._next_fill else None
        return FeedPositions(tuple(self._pending), forced, may_end=self._last)

    def _begin(self) -> bool:
        """Assemble the next block. Return False if text is missing."""
        config = self._config
        # Upstream checks its text cache whenever text arrives, but not before the first text.
        if self._started:
            while self._prompt_speech and len(self._text) >= config.text_block:
                self._pending += self._take_text()
                count = min(config.speech_block, len(self._prompt_speech))
                self._pending += [Item(PositionKind.SPEECH, self._prompt_speech.popleft()) for _ in range(count)]
            if not self._prompt_speech:
                after_fill = bool(self._out) and self._out[-1] == config.fill
                if after_fill or (not self._out and len(self._pending) == 1):
                    if len(self._text) >= config.text_block:
                        self._pending = self._take_text() if after_fill else [*self._pending, *self._take_text()]
                        self._decoding = True
                        return True
                else:
                    self._decoding = True
                    return True
        if not self._ended:
            return False
        self._pending += [Item(PositionKind.TEXT, i) for i in self._text]
        self._pending.append(Item(PositionKind.TASK))
        self._text.clear()
        self._decoding = self._last = True
        return True

    def _take_text(self) -> list[Item]:
        return [Item(PositionKind.TEXT, self._text.popleft()) for _ in range(self._config.text_block)]

    def drawn(self, speech_id: int) -> int | None:
        """Take the id of the last ``FeedPositions``. Return it if it is a speech token, or None if it is a control id.

        Raises:
            UnexpectedControlId: the id is a control id that is neither an allowed fill nor an allowed end.
        """
        config = self._config
        forced = not self._last and len(self._out) == self._next_fill
        if forced:
            self._next_fill += config.speech_block + 1
        if speech_id == config.fill and not self._last:
            self._next_fill = len(self._out) + config.speech_block + 1
        self._out.append(speech_id)
        if speech_id < config.speech_token_size:
            self._pending = [Item(PositionKind.SPEECH, speech_id)]
            return speech_id
        if self._last and speech_id == config.eos:
            self.finished = True
        elif not self._last and speech_id == config.fill:
            self._decoding = False
        else:
            expected = f"{config.eos} (end)" if self._last else f"{config.fill} (fill)"
            raise UnexpectedControlId(f"the model drew control id {speech_id}, expected {expected}")
        return None
