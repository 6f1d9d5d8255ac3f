"""Kinds of trainers: what a study turns in the command of each, and how its steps are heard; one file for each."""
