"""Reports: figures and text."""
