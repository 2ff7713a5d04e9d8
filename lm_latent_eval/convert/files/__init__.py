"""Files of other programs, read without running anything that is in them."""
