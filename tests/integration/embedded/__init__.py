"""A log in a folder, as an application uses it."""
