"""Pacing, playout, RTP and jitter: when a frame is sent, and the order of what arrives. Everything is pure except the
ticker and the timer. This room knows no call and no peer."""
