"""The result document of a study, its sentences and its failures."""
