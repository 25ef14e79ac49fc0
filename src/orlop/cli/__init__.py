"""What a person types: one file per verb. Each parses, calls and prints; what it finds out is found out elsewhere."""
