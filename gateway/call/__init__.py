"""What becomes of one call: whose turn it is, what an interruption cuts, what the caller has heard. This room knows no
carrier, no socket and no codec: all of these come in through `gateway.seams`.
"""
