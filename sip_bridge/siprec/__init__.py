"""Copies of calls to a session recording server by SIP (SIPREC). This room is the session recording client of RFC 7866;
it knows the sound of both sides and the names of the parties, and nothing else of a call."""
