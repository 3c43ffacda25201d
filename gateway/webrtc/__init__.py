"""WebRTC calls as media legs. aiortc provides DTLS and SCTP, aioice ICE; the media path is our own."""
