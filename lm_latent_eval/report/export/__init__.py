"""Results in the formats of archives and leaderboards."""
