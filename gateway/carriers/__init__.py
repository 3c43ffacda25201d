"""What each carrier or switch says and wants to hear: a folder a vendor, bytes to values and back, proof of who calls.
Knows nothing of turns or pacing.
"""
