"""The acceptance: a service of several machines as real programs on this one, in which every process is restarted and
killed while calls talk. ``python -m tests.peers.acceptance`` runs it; ``test_acceptance.py`` runs a small one.
"""
