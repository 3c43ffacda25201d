"""WebRTC calls: one more media leg. aiortc carries DTLS and SCTP, aioice ICE; the frame path is ours."""
