"""What trials say: scores, constraints, leaderboard, comparison, confirmation, early stopping. Pure."""
