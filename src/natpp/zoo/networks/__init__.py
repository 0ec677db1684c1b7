"""Hand-crafted networks as plain modules, one file a family; `natpp.zoo.network` builds them by name."""
