"""What a person sees: pictures and text."""
