"""Every collective of a rank, its bytes by definition, and what a hang left behind."""
