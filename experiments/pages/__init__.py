"""The parts of docs/results.md: a function for each table, and one for its rows in the README."""
