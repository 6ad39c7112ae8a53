"""solo-learn: the one door to it."""
