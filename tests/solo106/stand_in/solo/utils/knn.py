class WeightedKNNClassifier:
    """Like the original it cannot be made with torchmetrics 1."""

    def __init__(self, *_, **__):
        raise ValueError("Unexpected keyword arguments: `compute_on_step`")
