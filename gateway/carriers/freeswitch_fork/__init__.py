"""FreeSWITCH with mod_audio_fork."""
