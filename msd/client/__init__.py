"""What a training loop iterates."""
