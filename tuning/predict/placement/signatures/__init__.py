"""How tensors and matrices lie on the ranks of one axis: signatures of operators, and the cheapest of them together."""
