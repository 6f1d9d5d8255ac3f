"""What to try next: policy, proposer, budgets, predictions as a prior."""
