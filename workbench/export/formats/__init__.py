"""Public trainers, one file for each: it writes the trainer's configuration, reads it, and says what is lost."""
