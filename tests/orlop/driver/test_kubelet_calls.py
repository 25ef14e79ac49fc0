"""The targets that kubelet may name, whatever kind of volume it calls for."""

from __future__ import annotations

import pytest

from orlop.csi.error_codes import InvalidArgument
from orlop.driver.kubelet_calls import target_below


def test_a_target_with_a_name_that_no_file_system_takes_is_refused():
    with pytest.raises(InvalidArgument, match="a name of more than 255 bytes"):
        target_below("/var/lib/kubelet/pods/" + "é" * 128, "/var/lib/kubelet")
    assert target_below("/var/lib/kubelet/" + "a" * 255, "/var/lib/kubelet") == "a" * 255


@pytest.mark.parametrize("kubelet_dir", ["/k/l", "/k/l/", "//k//l/.", "/k/./l"])
@pytest.mark.parametrize("target", ["/k/l/pods/x", "//k/l//pods/./x/", "/k/./l/pods/x"])
def test_repeated_slashes_and_single_dots_do_not_change_the_path(kubelet_dir: str, target: str):
    assert target_below(target, kubelet_dir) == "pods/x"


@pytest.mark.parametrize("target", ["/k/lx/pods", "/k", "/k/l", "/k/l/.", "/l/pods", "/k/l/../l/pods"])
def test_what_is_not_below_kubelets_folder_is_refused_however_it_is_spelled(target: str):
    with pytest.raises(InvalidArgument):
        target_below(target, "/k/l/")


def test_a_target_is_found_by_each_path_of_kubelets_folder():
    assert target_below("/var/lib/kubelet/pods/x", "/var/lib/kubelet", "/data/kubelet") == "pods/x"
    assert target_below("/data/kubelet/pods/x", "/var/lib/kubelet", "/data/kubelet") == "pods/x"
    with pytest.raises(InvalidArgument, match="not below kubelet's folder /var/lib/kubelet"):
        target_below("/data/pods/x", "/var/lib/kubelet", "/data/kubelet")
