def accuracy_at_k(outputs, targets, top_k=(1, 5)):
    """Percentages; like the original it fails for fewer classes than k."""
    ranked = outputs.topk(max(top_k), dim=1).indices
    hits = ranked == targets[:, None]
    return [100 * hits[:, :k].any(dim=1).float().mean() for k in top_k]
