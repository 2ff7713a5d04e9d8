"""What a run says to its reader."""
