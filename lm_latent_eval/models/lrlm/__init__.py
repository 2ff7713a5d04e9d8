"""LRLM: a language model that names the relations of what a text is about."""
