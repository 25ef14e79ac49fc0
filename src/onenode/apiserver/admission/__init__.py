"""ValidatingAdmissionPolicies: which of them a write matches, and what their expressions decide about it.

Not here: what a policy's own object must look like (kinds/), and the CEL library (custom_resources/expressions).
"""
