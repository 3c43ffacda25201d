"""Generates pages of the documentation from the program: REST, metrics, commands.

``talkspurt.config.reference`` generates the page of the configuration, ``gateway.dialogue.description`` the page of the
dialogue protocol.
"""
