"""What each carrier or switch says and expects. Each vendor has a folder, which turns bytes into values and back, and
checks who calls. This room knows nothing of turns or pacing.
"""
