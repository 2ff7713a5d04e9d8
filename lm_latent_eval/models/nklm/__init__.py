"""NKLM: a language model that copies words out of the facts of a topic."""
