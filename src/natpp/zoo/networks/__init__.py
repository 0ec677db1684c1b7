"""Hand-crafted networks as plain modules, one file per family; `natpp.zoo.network` builds them by name."""
