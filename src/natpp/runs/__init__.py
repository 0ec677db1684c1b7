"""What takes long, and how it resumes."""
