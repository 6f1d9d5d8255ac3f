"""A step played through by events on a model of the machine; ``tuning.predict.events.simulate`` is the door."""
