"""A layout of any size, checked on one process: is it legal, and what must each kind of rank hold?"""
