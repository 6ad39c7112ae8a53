"""A tree of images as a thing of its own: built from any features, cut, walked, kept; duplicates and outliers."""
