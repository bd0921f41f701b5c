"""The shipped presets: one TOML file each."""
