"""Local clusters as processes that are started, killed and found again."""
