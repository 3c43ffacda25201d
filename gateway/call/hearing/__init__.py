"""Everything that comes from the phone: the caller's speech, words and touch tones, the end of a thought, and the bot's
echo. This room reports to `turn_taking`, which decides what follows."""
