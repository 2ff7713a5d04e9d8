"""What the modules for ``evaluate`` compute, which none of this needs."""
