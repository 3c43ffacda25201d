"""Turns text into token ids and reference audio into prompt features. Decides the wording that is read; knows no
GPU."""
