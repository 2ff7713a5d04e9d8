"""KGLM: a language model that walks through a knowledge graph."""
