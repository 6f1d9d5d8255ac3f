"""The first ten minutes on a new machine as checks: what each one proves, how it ended, and a folder of evidence."""
