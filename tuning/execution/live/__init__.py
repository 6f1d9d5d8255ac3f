"""A training run that goes on while a study turns its knobs: each trial is a window of its steps."""
