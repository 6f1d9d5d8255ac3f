"""Time and memory of a configuration before it runs, with how sure that is."""
