"""The best layouts of a model on a cluster, and why not the others."""
