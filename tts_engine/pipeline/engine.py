"""The ``SpeechEngine`` of this process, with one or more voice models. It opens utterances and owns what they share:
models, cache, admission queue and codec threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tts_engine.api import EngineStatus, ModelToLoad, UtteranceRequest, VoiceInfo
from tts_engine.errors import Exhausted, InvalidRequest, NotFound, Unavailable
from tts_engine.pipeline.admission_queue import AdmissionQueue
from tts_engine.pipeline.clause_cache import ClauseCache
from tts_engine.pipeline.observer import EngineObserver
from tts_engine.pipeline.prompts import warm
from tts_engine.pipeline.settings import SpeechConfig
from tts_engine.pipeline.shared_clause import ClauseInMaking
from tts_engine.pipeline.utterance import EngineUtterance
from tts_engine.supervision import SteadyThreads
from tts_engine.synthesizer import Synthesizer, VoiceEditor


class Engine:
    """Speaks utterances with the active one of the loaded voice models, in this process."""

    def __init__(
        self,
        models: Synthesizer | Mapping[str, Synthesizer],
        config: SpeechConfig | None = None,
        *,
        observer: EngineObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            models: the voice model, or several by name. The first one is active. The engine starts and closes them.
            observer: receives times and counts. None: they are dropped.
            clock: monotonic seconds, the same clock as ``Utterance.played``.
        """
        self.models: Mapping[str, Synthesizer] = dict(models) if isinstance(models, Mapping) else {models.name: models}
        self.active = next(iter(self.models))
        self.config = config or SpeechConfig()
        self.observer = observer
        self.clock = clock
        self.cache = ClauseCache(self.config.cache_bytes)
        self.admission = AdmissionQueue(self.config.admission, observer)
        self.in_making: dict[Hashable, ClauseInMaking] = {}
        self.drafts: set[Hashable] = set()
        self.codec_pool: ThreadPoolExecutor = SteadyThreads(self.config.codec_threads, "talkspurt-codec")
        self._open: set[EngineUtterance] = set()
        self._warming: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Load and warm up the models one after the other, because a loading model takes all of its device. Then begin
        to make the prompts."""
        for model in self.models.values():
            await model.start()
        self._warm()
        if self._warming is not None and self.config.prompts_before_ready:
            await asyncio.wait({self._warming})

    def _warm(self) -> None:
        """Make the prompts with the active model."""
        if self._warming is not None:
            self._warming.cancel()
        if self.config.prompts:
            self._warming = asyncio.create_task(warm(self.config.prompts, self._make_prompt), name="prompts")

    async def _make_prompt(self, request: UtteranceRequest, text: str) -> bool:
        async with self.open(request) as utterance:
            utterance.speech.is_prompt = True
            utterance.feed(text)
            utterance.end_text()
            async for _ in utterance:
                pass
        return utterance.speech.kept

    def open(self, request: UtteranceRequest) -> EngineUtterance:
        """Begin an utterance.

        Raises:
            InvalidRequest: the speed is outside 0.25 to 4.
            NotFound: the model is not loaded.
            Exhausted: ``max_utterances`` are open.
            Unavailable: the engine is closed.
        """
        if self._closed:
            raise Unavailable("the engine is closed")
        if not 0.25 <= request.speed <= 4:
            raise InvalidRequest(f"speed is {request.speed}, expected 0.25 to 4", field="speed")
        self._require(request.model or self.active)
        if len(self._open) >= self.config.max_utterances:
            raise Exhausted(
                f"{len(self._open)} utterances are open, as many as max_utterances allows", retry_after_s=1.0
            )
        utterance = EngineUtterance(self, request)
        self._open.add(utterance)
        return utterance

    def closed(self, utterance: EngineUtterance) -> None:
        """Note that an utterance has ended and released everything."""
        self._open.discard(utterance)

    @property
    def synthesizer(self) -> Synthesizer:
        """The active model."""
        return self.models[self.active]

    async def list_voices(self) -> Sequence[VoiceInfo]:
        """Return the voices of the active model."""
        return self.synthesizer.voices()

    async def add_voice(
        self, *, voice_id: str, name: str, wav: bytes | bytearray, transcript: str, language: str
    ) -> VoiceInfo:
        """Register a voice with the active model, in a thread.

        Raises:
            InvalidRequest: the active model has fixed voices, or the recording or a field cannot be used.
        """
        if not isinstance(self.synthesizer, VoiceEditor):
            raise InvalidRequest(
                f"the {self.synthesizer.name} engine has built-in voices only and cannot clone one from a recording; "
                "the models that can are cosyvoice2 and cosyvoice3 (engine.kind)",
                field="audio",
            )
        return await asyncio.to_thread(
            self.synthesizer.add_voice,
            voice_id=voice_id,
            name=name,
            wav=bytes(wav),
            transcript=transcript,
            language=language,
        )

    async def remove_voice(self, voice_id: str) -> None:
        """Remove a registered voice. Utterances that speak with it finish.

        Raises:
            NotFound: there is no voice of that id.
            InvalidRequest: the voice is built in.
        """
        if not isinstance(self.synthesizer, VoiceEditor):
            raise InvalidRequest(
                f"the voices of the {self.synthesizer.name} engine are built in and cannot be removed", field="voice_id"
            )
        await asyncio.to_thread(self.synthesizer.remove_voice, voice_id)

    async def set_active_model(self, model: str) -> None:
        """Speak new utterances with another model. Utterances that are open keep theirs to the end.

        Raises:
            NotFound: the model is not loaded.
        """
        self._require(model)
        self.active = model
        self._warm()

    def _require(self, model: str) -> None:
        if model not in self.models:
            raise NotFound(f"model {model!r} is not loaded; there is {', '.join(self.models)}")

    async def load_model(self, model: ModelToLoad) -> None:
        """Refuse. A model that is loaded later has a process of its own: ``tts_engine.service.models``."""
        raise InvalidRequest("this engine loads no models while it runs", field="model")

    async def unload_model(self, name: str) -> None:
        """Refuse; see ``load_model``."""
        raise InvalidRequest(f"model {name!r} was there at the start and stays as long as the engine", field="model")

    async def status(self) -> EngineStatus:
        """Return the status of the active model. ``ready``, ``active`` and ``queued`` cover all models."""
        each = {name: model.status() for name, model in self.models.items()}
        return replace(
            each[self.active],
            ready=all(one.ready for one in each.values()),
            model=self.active,
            models=tuple(self.models),
            active=sum(one.active for one in each.values()),
            queued=sum(one.queued for one in each.values()) + len(self.admission),
        )

    async def aclose(self) -> None:
        """Cancel all utterances, then close the models."""
        self._closed = True
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.wait({self._warming})
        for utterance in self._open:
            utterance.fail(Unavailable("the engine is closed"))
        await asyncio.gather(*(utterance.aclose() for utterance in list(self._open)))
        for model in self.models.values():
            await model.aclose()
        self.codec_pool.shutdown()
