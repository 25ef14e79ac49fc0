"""The address of an API server, taken apart."""

from __future__ import annotations

import pytest

from orlop.kube.http.server_endpoint import InvalidAddress, ServerAddress, server_address

ADDRESSES = {
    "https://10.0.0.1:6443": ServerAddress("10.0.0.1", 6443, "10.0.0.1:6443", ""),
    "https://kube.example.com": ServerAddress("kube.example.com", 443, "kube.example.com", ""),
    "https://kube.example.com:443/": ServerAddress("kube.example.com", 443, "kube.example.com", ""),
    "http://localhost": ServerAddress("localhost", 80, "localhost", ""),
    "https://[::1]:6443": ServerAddress("::1", 6443, "[::1]:6443", ""),
    "https://rancher/k8s/clusters/c-1": ServerAddress("rancher", 443, "rancher", "/k8s/clusters/c-1"),
}


@pytest.mark.parametrize(("text", "address"), ADDRESSES.items())
def test_an_address_says_where_to_connect_and_what_stands_before_each_path(text: str, address: ServerAddress):
    assert server_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "nonsense", "http://", "http://[::1", "https://x:port", "https://x:99999", "ftp://x"]
)
def test_what_is_no_address_is_told_with_itself(text: str):
    with pytest.raises(InvalidAddress, match="is not the address of a server"):
        server_address(text)
