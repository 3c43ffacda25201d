"""One call: its start, its permissions, its speech, its statistics and its end. This room knows no carrier, socket or
codec; they come in through `gateway.seams`.

Two rooms below it decide and do not import it: `turn_taking` decides when each turn speaks, `hearing` what the caller
said.
"""
