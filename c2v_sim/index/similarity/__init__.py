"""What follows from how alike clients are: clusters of them, and indices compared."""
