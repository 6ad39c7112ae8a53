"""A stand-in for solo-learn 1.0.6: as much of its interface as HCSC touches, and no more."""
