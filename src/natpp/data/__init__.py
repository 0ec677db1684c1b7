"""Images and labels as arrays; this room knows nothing of architectures."""
