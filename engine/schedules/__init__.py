"""Pipeline schedules as data: pure functions from sizes to one list of actions per stage."""
