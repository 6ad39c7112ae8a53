from solo.utils.metrics import accuracy_at_k

__all__ = ["accuracy_at_k"]
