"""Speech recognition, embedded or external, and detection of complete thoughts. This room knows nothing of turns."""
