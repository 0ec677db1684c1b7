"""How a better architecture is found: scorers and methods, learning a policy, applying it."""
