"""Decides whether a tenant may have more: requests, characters, calls and streams. This room knows no request and no
call, and nothing of who a tenant is."""
