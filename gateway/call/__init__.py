"""One call: how it begins, what it may do, how turns become sound, what is counted, how it ends. This room knows no
carrier, no socket and no codec: all of these come in through `gateway.seams`.

Two rooms below it decide, and know nothing of it: `turn_taking` whose turn it is, `hearing` what the caller says.
"""
