"""Questions across runs: why the winner wins, quality, verdicts again."""
