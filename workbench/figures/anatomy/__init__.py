"""Drawings of the anatomy of a step: lanes of its ranks, ranks by steps, one call of a collective, its schedule."""
