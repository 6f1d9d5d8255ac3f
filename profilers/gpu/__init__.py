"""Readings of GPUs through the vendor's management library (NVML or AMD SMI)."""
