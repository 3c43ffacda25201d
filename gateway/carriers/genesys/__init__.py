"""Genesys AudioHook, as Audio Connector and as monitor."""
