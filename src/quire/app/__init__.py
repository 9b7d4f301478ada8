"""Where a process is put together: settings from its command line, drivers from a URI, a start and a stop."""
