"""The supervisor of the process, for packages that may not import the engine's."""

from tts_engine.supervision import SUPERVISOR as SUPERVISOR
from tts_engine.supervision import Need as Need
from tts_engine.supervision import SupervisedTask as SupervisedTask
