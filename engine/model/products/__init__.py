"""Products other than those of a whole matrix with all tokens: of sampled rows, and low-rank sides of frozen ones."""
