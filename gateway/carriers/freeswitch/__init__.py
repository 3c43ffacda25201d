"""FreeSWITCH with mod_audio_stream, and the event socket that leads its calls."""
