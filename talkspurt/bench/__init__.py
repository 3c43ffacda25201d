"""Load on a real server, and the figures of it. Measures from outside, by a clock of its own."""
