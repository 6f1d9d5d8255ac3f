"""What this machine was measured to reach: fingerprint, tables, fits."""
