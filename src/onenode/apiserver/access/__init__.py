"""Who a caller is and what it may do: tokens, certificates, RBAC, impersonation, reviews."""
