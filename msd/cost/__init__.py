"""What a document will cost, from metadata."""
