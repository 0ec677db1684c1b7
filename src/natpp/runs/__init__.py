"""Long runs, and how they resume."""
