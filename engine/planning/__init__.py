"""Plans of compression while a run goes: gradients are watched, ranks meet, and all of them change at one step."""
