"""The paper, on torch and faiss alone: usable in any training loop."""
