"""Commands of trainers that are not this project's."""
