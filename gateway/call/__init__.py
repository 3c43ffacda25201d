"""What becomes of one call: whose turn it is, what an interruption takes along, what was heard. Knows no carrier, no
socket and no codec: all of these come in through `gateway.seams`.
"""
