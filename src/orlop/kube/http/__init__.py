"""HTTP/1.1 to one API server, written by hand: requests and responses, connections and their pool, TLS.

What does not belong here: the API's verbs and errors (`client`, `api_errors`), and retries (`retry_rules`).
"""
