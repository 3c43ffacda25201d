"""Turn-taking on human speech: false cuts, missed cuts, false prompts, premature ends and delays. See README.md here.

Recorded speech, music and noises come from Debian packages; rooms, lines and echoes are computed. Whole sessions of the
gateway run on a virtual clock, faster than real time, with the real uplink, voice detection and turn-taking.
"""
