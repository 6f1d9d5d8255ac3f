"""Ways of starting ranks behind one small interface."""
