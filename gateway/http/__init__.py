"""The HTTP application: webhooks, pages, health and the APIs of its subpackages. ``request`` admits requests,
``speech_api`` speaks without a call, ``call_api`` controls calls."""
