"""A study on a run that goes on."""
