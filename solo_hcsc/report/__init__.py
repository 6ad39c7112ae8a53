"""Pages and pictures."""
