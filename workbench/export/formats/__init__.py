"""Files of public trainers: one file for each, whose table writes a configuration, reads it, and says what is lost."""
