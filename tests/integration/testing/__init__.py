"""What users test their own programs with."""
