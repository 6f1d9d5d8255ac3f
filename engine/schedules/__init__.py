"""Pipeline schedules as lists of actions: registry, generators, simulation, closed forms. Pure."""
