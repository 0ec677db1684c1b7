"""How anything trains."""
