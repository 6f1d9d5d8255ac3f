"""Files of public trainers and clusters, one for each: it writes a configuration, reads it, and says what is lost."""
