"""Models that learn an artificial language, and how well they know it."""
