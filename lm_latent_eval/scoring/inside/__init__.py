"""Views inside a text: surprisal by word, and its most probable latents."""
