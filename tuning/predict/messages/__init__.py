"""What every rank sends in a step, call by call, by formula; ``tuning.predict.traffic`` is the door."""
