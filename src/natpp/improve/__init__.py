"""How an architecture is improved: scorers and methods, learning a policy, applying it."""
