"""The experiments behind the tables of natpp: `python -m experiments` lists them."""
