"""The shipped sweeps: paper/ and small/, one TOML file each."""
