"""Results on one page of HTML that needs nothing else."""
