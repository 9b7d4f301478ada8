"""What a running Quire says about itself: metrics for machines, events for people, each under one declared name."""
