"""What ``nvidia-smi`` prints, one module per command. Parsers are pure: text in, a frozen value or ParseError out."""
