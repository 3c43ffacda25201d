"""Sockets of SIP and RTP: what is sent and received, and where to. This room decides nothing about a dialog."""
