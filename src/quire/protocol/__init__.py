"""Protocol cores: events in, decisions out. They do no I/O, read no clock, and know no codec."""
