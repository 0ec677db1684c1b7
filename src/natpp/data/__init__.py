"""Images and labels as arrays; this package does not depend on architectures."""
