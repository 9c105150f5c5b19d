"""Programs that start the peers. Each is run by file, by the Python of that peer's own environment."""
