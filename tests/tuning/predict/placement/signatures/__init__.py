"""Signatures of operators."""
