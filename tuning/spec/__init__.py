"""The study file: objective, constraints, budgets, sampler, and checks of the environment."""
