"""Tests of the shipped workloads and of the seam."""
