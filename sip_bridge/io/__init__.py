"""Sockets of SIP and RTP. This package sends and receives; it makes no decisions about dialogs."""
