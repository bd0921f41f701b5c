"""Models of the clients' own, by which they are tested."""
