"""What may happen to a row on its way to a sample."""
