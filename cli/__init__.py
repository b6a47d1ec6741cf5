"""The `gaoler` command: one module for each subcommand, and the composition root."""
