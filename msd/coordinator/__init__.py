"""When, and who is alive: events in, commands out."""
