"""A run beside the same run without its client index: two run directories, one table."""
