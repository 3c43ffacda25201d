"""Carries calls over SIP and RTP as legs of the gateway's sessions. This package does not know the speech engine."""
