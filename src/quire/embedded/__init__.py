"""A whole log inside one folder and one process: bookies and metadata without a server, a port, or a setting.

`folder` says where everything is and who works there; `log` opens it, and brings the whole of a bookie along. Commands
that only look at a folder do not wait for that, so nothing is imported here.
"""
