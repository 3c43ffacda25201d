"""Calls by SIP and RTP, as legs of the gateway's sessions: one more way in and out. This package knows no speech
engine."""
