"""The run command without its client index, which the presets let it use: quicker, and enough for
whatever a test asks of a run in general."""

PLAIN = ("--improve", "none")
