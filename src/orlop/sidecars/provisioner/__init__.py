"""The provisioner of any CSI driver: claims become volumes, and released volumes go away again.

Belongs here: decisions and work of `orlop provisioner`. Does not: anything of our own driver, and rules that the binder
and the scheduler need too (`orlop/binding`).
"""
