"""The records of all ranks as numbers: steps, communication, pipeline, machine, events. Pure."""
