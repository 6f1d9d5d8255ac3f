"""Where the time of a run went: its steps as a whole, and the page that leads to one step, rank and call."""
