"""The bench: a Kubernetes of one machine, as far as Orlop's roles and authors of CSI drivers need it.

It imports `orlop`; `orlop` never imports it. Images for clusters leave this package out.
"""
