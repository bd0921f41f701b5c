"""The main command and the run directory that it leaves."""
