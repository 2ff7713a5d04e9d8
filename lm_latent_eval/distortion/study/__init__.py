"""Distortion studies: LeBrun et al. (2022), end to end.

- ``plan``: sizes and numbers, in a JSON file, models and folders;
- ``steps``: what is divided, drawn, trained and scored, each into a folder of its own;
- ``run``: all of it, resumable, several steps at a time.
"""
