"""One file for each kind of decision."""
