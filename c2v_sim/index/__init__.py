"""One vector per client, before training: DSA-IGN, its training, the index and its quality."""
