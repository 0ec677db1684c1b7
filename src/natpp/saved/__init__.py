"""How a result is kept in a folder and restored."""
