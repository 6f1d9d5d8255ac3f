"""The devices that a run's ranks use, and whether torch can use them."""
