"""Limits tenants: requests, characters, calls and streams. This package knows no requests or calls, and nothing about
tenants but their names."""
