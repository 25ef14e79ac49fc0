"""The API server of one machine, as its clients see it."""
