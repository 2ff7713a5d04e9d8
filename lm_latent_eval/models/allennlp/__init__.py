"""Models that were trained with AllenNLP: their archives and how they are read."""
