"""What experiments share."""
