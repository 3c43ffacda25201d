"""Decides when a frame is sent, and puts what arrives in order: pacing, playout, RTP, jitter. It is pure except the
ticker and the timer, and knows no call and no peer.
"""
