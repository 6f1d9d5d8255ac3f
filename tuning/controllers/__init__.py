"""Controllers of a study: opening, sharing, steering and forking it while it runs."""
