"""Drawings of a search: its pareto fronts, what mattered, the run that it tunes, and what is thinned of a long one."""
