"""The round loop, its state, steering by the index, evaluation and records."""
