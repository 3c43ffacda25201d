"""Turns text into token ids and reference audio into prompt features. It decides how text is read aloud. It does not
use the GPU."""
