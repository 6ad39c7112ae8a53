"""What a frozen encoder is worth: features, probes, KNN, clusters against labels, results on disk."""
