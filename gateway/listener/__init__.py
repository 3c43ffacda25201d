"""Listening sockets for calls, from the first byte to a media leg. Decides who may connect; knows no turns."""
