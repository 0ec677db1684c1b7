"""Save results to a folder and restore them."""
