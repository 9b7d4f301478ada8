"""A real Spark for tests: one session for a test process (`session.py`), and a standalone cluster (`standalone.py`)."""
