"""What the other rooms stand on: files, the machine, seeds, signals, settings, errors."""
