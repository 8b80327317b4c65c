"""Parsers of ``nvidia-smi`` output, one module per command. Pure: text in, a frozen value or ParseError out."""
