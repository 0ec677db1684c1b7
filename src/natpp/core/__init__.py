"""What may be otherwise, what it costs, and how a budget is met."""
