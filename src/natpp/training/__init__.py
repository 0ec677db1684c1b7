"""Training: losses, recipes, loops and short trainings."""
