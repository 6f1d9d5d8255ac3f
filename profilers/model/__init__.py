"""The frozen dataclasses of a run's summary and verdicts; no computation."""
