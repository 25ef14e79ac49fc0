"""The verbs on resources: get, list, watch, create, update, patch, delete, subresources. Writes to the store."""
