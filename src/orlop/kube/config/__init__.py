"""Find an API server and our credentials: kubeconfig files, a pod's service account, credential plugins.

What does not belong here: connections (`http/`). Nothing here sends a request.
"""
