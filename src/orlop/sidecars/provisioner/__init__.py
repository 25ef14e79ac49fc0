"""The provisioner of any CSI driver: creates volumes for claims, and deletes the volumes of released PersistentVolumes.

Words used here: *upstream* is kubernetes-csi/external-provisioner. *Binder* is the PersistentVolume controller of
kube-controller-manager. *Late binding* is `volumeBindingMode: WaitForFirstConsumer`. An *order* is the recorded
intention to create one volume, kept in a *journal* until the outcome is known (`claim_rules`).

Belongs here: decisions and work of `orlop provisioner`. Does not: anything of our own driver, and rules that the binder
and the scheduler need too (`orlop/binding`).
"""
