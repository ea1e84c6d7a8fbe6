"""Where rows come from: the index of a source, and readers of its blocks."""
