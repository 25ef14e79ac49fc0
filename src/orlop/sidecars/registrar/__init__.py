"""Makes a CSI driver known to the kubelet of its node, and keeps what kubelet knows of it true."""
