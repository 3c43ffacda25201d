"""Exotel's Voicebot applet."""
