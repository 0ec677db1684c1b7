"""Decisions about a network, what they cost, and how a budget is met."""
