"""What mattered in a study: importance, SHAP, partial dependence, and what each neighbour of the winner loses."""
