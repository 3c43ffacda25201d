"""Decides whose key it is that a request shows. This room knows no request, and nothing of what a key may see."""
