"""Models trained on artificial languages, and their evaluation."""
