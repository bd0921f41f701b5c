"""What embeds samples and labels for the index."""
