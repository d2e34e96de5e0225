"""Reading data sets in training: manifests, orders of samples, batches. Client code only."""
