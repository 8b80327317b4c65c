"""What `nvidia-smi` prints: parsers from text to values, one module per subcommand. Nothing here runs a command."""
