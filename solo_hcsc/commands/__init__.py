"""What you type: one file a command, read top to bottom."""
