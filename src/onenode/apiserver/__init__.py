"""The one-machine API server (onenode): what clients of Kubernetes see, for the kinds that storage needs.

`schemas.json` is generated (tools/generate_kube_schemas.py). The `*_rules` modules decide what an object must look
like, what the server adds to it, what may change, and what a patch makes of it; they read nothing and keep nothing.
Texts that clients see are Kubernetes' own. Not here: anything that acts on objects by itself, which is a controller.
"""
