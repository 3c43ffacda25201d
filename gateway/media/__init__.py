"""When a frame leaves and what arrives: pacing, playout, RTP, jitter. Pure but for the ticker; knows no call and no
peer.
"""
