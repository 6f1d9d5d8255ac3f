"""Public trainers, each in an environment of its own: what their parsers know and accept, and three steps of each."""
