"""Pages of the documentation that are made of the program: REST, metrics, commands.

``talkspurt.config.reference`` makes the page of the configuration, ``gateway.dialogue.description`` that of the
dialogue protocol.
"""
