"""Sockets of SIP and RTP: what is sent and received, and where to. Decides nothing about a dialog."""
