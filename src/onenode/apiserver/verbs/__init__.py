"""The verbs on resources: get, list, watch, create, update, patch, delete, subresources. Writes to the store.

Not here: reading a request (requests/), writing a response (answers/), and the store itself (store/).
"""
