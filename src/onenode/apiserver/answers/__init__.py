"""What a response holds: objects, tables, statuses, discovery and OpenAPI documents. Nothing here changes the store."""
