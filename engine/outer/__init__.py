"""Outer loops: replicas train by themselves for some steps and meet once a round, not once a step."""
