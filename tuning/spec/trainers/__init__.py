"""Trainers that are not this project's: how each is recognised, told its values, and heard, one entry for each."""
