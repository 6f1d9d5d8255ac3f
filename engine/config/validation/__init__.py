"""The rules that a configuration keeps, and what may change while it runs."""
