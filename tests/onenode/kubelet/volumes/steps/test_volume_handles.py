"""The names that Kubernetes makes for volumes by hashing."""

from __future__ import annotations

from onenode.kubelet.volumes.volume_values import attachment_name


def test_a_volume_attachment_is_named_by_the_hash_of_handle_driver_and_node():
    name = attachment_name("vol-1", "csi.example.com", "node-1")

    # printf 'vol-1csi.example.comnode-1' | sha256sum
    assert name == "csi-b74c7fc125891ffa0d0f2e0d645733e3fae7fba3066e76500a771ea08be9da28"
