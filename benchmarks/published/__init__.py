"""Models of published measurements, and what reads their tables; evaluation code."""
