"""Placements, links and machines that predictions are tried on, and sums that they are held against."""
