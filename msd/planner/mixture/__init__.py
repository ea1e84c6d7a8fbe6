"""Which share each source has when, and the integers that draws count in."""
