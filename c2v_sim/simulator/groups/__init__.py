"""Clients that are not all tested by one model: clusters, and clients that never train."""
