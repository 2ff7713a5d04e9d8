"""Readers of other programs' files, which execute nothing in them."""
