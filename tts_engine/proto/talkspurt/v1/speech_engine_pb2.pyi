from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AudioFormat(_message.Message):
    __slots__ = ("encoding", "sample_rate", "ptime_ms")
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    PTIME_MS_FIELD_NUMBER: _ClassVar[int]
    encoding: str
    sample_rate: int
    ptime_ms: int
    def __init__(self, encoding: _Optional[str] = ..., sample_rate: _Optional[int] = ..., ptime_ms: _Optional[int] = ...) -> None: ...

class Utterance(_message.Message):
    __slots__ = ("utterance_id", "format", "voice", "language", "speed", "instruct", "ahead")
    UTTERANCE_ID_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    INSTRUCT_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    utterance_id: str
    format: AudioFormat
    voice: str
    language: str
    speed: float
    instruct: str
    ahead: bool
    def __init__(self, utterance_id: _Optional[str] = ..., format: _Optional[_Union[AudioFormat, _Mapping]] = ..., voice: _Optional[str] = ..., language: _Optional[str] = ..., speed: _Optional[float] = ..., instruct: _Optional[str] = ..., ahead: _Optional[bool] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("samples", "age_s")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    samples: int
    age_s: float
    def __init__(self, samples: _Optional[int] = ..., age_s: _Optional[float] = ...) -> None: ...

class SpeakRequest(_message.Message):
    __slots__ = ("utterance", "text", "end_of_text", "position")
    UTTERANCE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    END_OF_TEXT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    utterance: Utterance
    text: str
    end_of_text: bool
    position: Position
    def __init__(self, utterance: _Optional[_Union[Utterance, _Mapping]] = ..., text: _Optional[str] = ..., end_of_text: _Optional[bool] = ..., position: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class TextSpan(_message.Message):
    __slots__ = ("start_char", "end_char", "first_sample", "end_sample", "exact")
    START_CHAR_FIELD_NUMBER: _ClassVar[int]
    END_CHAR_FIELD_NUMBER: _ClassVar[int]
    FIRST_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    END_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    start_char: int
    end_char: int
    first_sample: int
    end_sample: int
    exact: bool
    def __init__(self, start_char: _Optional[int] = ..., end_char: _Optional[int] = ..., first_sample: _Optional[int] = ..., end_sample: _Optional[int] = ..., exact: _Optional[bool] = ...) -> None: ...

class SpeakResponse(_message.Message):
    __slots__ = ("payload", "frame_bytes", "first_sample", "samples", "spans", "stages_ms")
    class StagesMsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    STAGES_MS_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    frame_bytes: _containers.RepeatedScalarFieldContainer[int]
    first_sample: int
    samples: int
    spans: _containers.RepeatedCompositeFieldContainer[TextSpan]
    stages_ms: _containers.ScalarMap[str, float]
    def __init__(self, payload: _Optional[bytes] = ..., frame_bytes: _Optional[_Iterable[int]] = ..., first_sample: _Optional[int] = ..., samples: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[TextSpan, _Mapping]]] = ..., stages_ms: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Voice(_message.Message):
    __slots__ = ("voice_id", "name", "languages", "engine", "registered")
    VOICE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    voice_id: str
    name: str
    languages: _containers.RepeatedScalarFieldContainer[str]
    engine: str
    registered: bool
    def __init__(self, voice_id: _Optional[str] = ..., name: _Optional[str] = ..., languages: _Optional[_Iterable[str]] = ..., engine: _Optional[str] = ..., registered: _Optional[bool] = ...) -> None: ...

class ListVoicesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListVoicesResponse(_message.Message):
    __slots__ = ("voices",)
    VOICES_FIELD_NUMBER: _ClassVar[int]
    voices: _containers.RepeatedCompositeFieldContainer[Voice]
    def __init__(self, voices: _Optional[_Iterable[_Union[Voice, _Mapping]]] = ...) -> None: ...

class AddVoiceRequest(_message.Message):
    __slots__ = ("voice_id", "name", "wav", "transcript", "language")
    VOICE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WAV_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    voice_id: str
    name: str
    wav: bytes
    transcript: str
    language: str
    def __init__(self, voice_id: _Optional[str] = ..., name: _Optional[str] = ..., wav: _Optional[bytes] = ..., transcript: _Optional[str] = ..., language: _Optional[str] = ...) -> None: ...

class RemoveVoiceRequest(_message.Message):
    __slots__ = ("voice_id",)
    VOICE_ID_FIELD_NUMBER: _ClassVar[int]
    voice_id: str
    def __init__(self, voice_id: _Optional[str] = ...) -> None: ...

class RemoveVoiceResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models", "active")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedScalarFieldContainer[str]
    active: str
    def __init__(self, models: _Optional[_Iterable[str]] = ..., active: _Optional[str] = ...) -> None: ...

class SetActiveModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class SetActiveModelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("with_metrics",)
    WITH_METRICS_FIELD_NUMBER: _ClassVar[int]
    with_metrics: bool
    def __init__(self, with_metrics: _Optional[bool] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("ready", "engine", "model", "models", "gpu", "vllm", "active", "queued", "detail", "metrics")
    READY_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    VLLM_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    ready: bool
    engine: str
    model: str
    models: _containers.RepeatedScalarFieldContainer[str]
    gpu: str
    vllm: str
    active: int
    queued: int
    detail: str
    metrics: bytes
    def __init__(self, ready: _Optional[bool] = ..., engine: _Optional[str] = ..., model: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., gpu: _Optional[str] = ..., vllm: _Optional[str] = ..., active: _Optional[int] = ..., queued: _Optional[int] = ..., detail: _Optional[str] = ..., metrics: _Optional[bytes] = ...) -> None: ...
