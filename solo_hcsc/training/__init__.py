"""A run: its folder, callbacks, checkpoints, resume, progress."""
