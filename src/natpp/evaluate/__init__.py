"""How good an architecture really is: tables of trained networks."""
