"""The HTTP application: webhooks, pages, health, and what its rooms add. ``request`` lets requests in, ``speech_api``
speaks without a call, ``call_api`` leads calls, which it finds through the directory."""
