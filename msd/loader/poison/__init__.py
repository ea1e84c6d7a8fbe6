"""Rows that end or hang the process that transforms them: how they are found out, and what is done with them then."""
