"""One step simulated event by event on a model of the machine; ``simulate.simulate_config`` is the door."""
