"""Gangs: which pods form one, how large it is, and what state its members are in. Pure."""
