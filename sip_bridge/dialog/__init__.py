"""The state machines of a SIP dialog, without I/O: messages and the time go in, effects come out."""
