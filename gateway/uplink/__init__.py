"""Processing of caller audio in its own thread: voice detection, recording, audio for a recogniser. This room reports
what it hears and decides nothing about turns."""
