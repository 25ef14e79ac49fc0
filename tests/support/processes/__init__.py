"""Real processes: the program itself, kubectl, HTTP servers."""
