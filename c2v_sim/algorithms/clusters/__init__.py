"""Several global models, each for some of the clients."""
