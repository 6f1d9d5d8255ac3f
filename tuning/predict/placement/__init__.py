"""Ranks on devices that are not alike."""
