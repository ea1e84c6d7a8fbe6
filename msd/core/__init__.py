"""The nouns that travel between the rooms: frozen values with arithmetic, no I/O, no clock."""
