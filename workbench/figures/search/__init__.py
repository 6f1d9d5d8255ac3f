"""Drawings of a search: its pareto fronts, the run that it tunes while it goes, and what is thinned of a long one."""
