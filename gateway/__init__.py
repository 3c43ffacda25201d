"""The media server: calls in and out over WebSockets and WebRTC, their turns, their pacing. Knows the speech engine
by its seam only, and SIP by the seams that `sip_bridge` fills.
"""

import tts_engine  # noqa: F401, switches off what libraries report
