"""Constants and allowances fitted to measurements: published tables, and the finished runs of this machine."""
