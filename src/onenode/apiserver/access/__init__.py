"""Who a caller is and what it may do: tokens, certificates, RBAC, impersonation, reviews.

Not here: how a request names its object (requests/), and what a kind's objects must look like (kinds/).
"""
