"""What only a kubelet asks of the kernel: volumes of pods, subPaths, payload folders, facts of the machine.

The seams are in `volume_host`. Does not belong here: what the product needs too (`orlop/host`), and containers.
"""
