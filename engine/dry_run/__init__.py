"""A rank built without devices, and measured."""
