"""`orlop attacher` as people run it: beside a driver, with an API server, a lease, flags and signals."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from orlop.kube import objects
from support.attaching.attacher_places import answer_of, place
from support.processes.orlop_process import run, run_here
from support.waiting import eventually_answered

NOTHING_TO_ATTACH = {"capabilities": {"controller": []}}


async def test_a_volume_is_attached_and_detached_and_the_lease_is_free_at_the_end(
    short_folder: Path, api_kubeconfig: Path
):
    async with place(short_folder, api_kubeconfig) as the:
        await the.make()
        with the.driver(), the.attacher("--leader-election") as attacher:
            await eventually_answered(the.is_attached)
            assert await the.holder()
            told = run_here("explain", "volumeattachment", the.named("va1"), f"--kubeconfig={the.kubeconfig}")
            assert (told.returncode, told.stdout.splitlines()[-1]) == (0, "Next: Nothing to do: it waits for nothing.")
            missing = run_here("explain", "volumeattachment", "none", f"--kubeconfig={the.kubeconfig}")
            assert missing.returncode == 3
            assert missing.stderr.startswith("There is no VolumeAttachment none. ")
            await the.delete()
            await eventually_answered(the.is_gone)
            attacher.signal(signal.SIGTERM)
            assert await attacher.exit_code() == 0
        assert await the.holder() == ""


async def test_what_fails_is_told_on_the_object_with_its_code_and_by_an_event_until_it_succeeds(
    short_folder: Path, api_kubeconfig: Path
):
    async with place(short_folder, api_kubeconfig) as the:
        full = {"times": 2, "error": {"code": "RESOURCE_EXHAUSTED", "message": "no slot"}}
        stuck = {"times": 2, "error": {"code": "INTERNAL", "message": "stuck"}}
        script = {"ControllerPublishVolume": [full], "ControllerUnpublishVolume": [stuck]}
        await the.make()
        with the.driver(script=script), the.attacher():
            told = await eventually_answered(lambda: the.error("attachError"))
            assert (told["message"], told["errorCode"]) == ("no slot", 8)
            await eventually_answered(the.is_attached)
            assert await the.error("attachError") is None
            await the.delete()
            told = await eventually_answered(lambda: the.error("detachError"))
            assert (told["message"], told["errorCode"]) == ("stuck", 13)
            await eventually_answered(the.is_gone)
            await eventually_answered(lambda: the.has_event("FailedAttachVolume", "no slot"))
            await eventually_answered(lambda: the.has_event("FailedDetachVolume", "stuck"))


async def test_a_driver_that_comes_late_is_waited_for(short_folder: Path, api_kubeconfig: Path):
    async with place(short_folder, api_kubeconfig) as the:
        await the.make()
        with the.attacher() as attacher:
            await attacher.says("waiting for the driver")
            await attacher.says("No such file or directory")
            with the.driver():
                await eventually_answered(the.is_attached)


async def test_a_driver_that_came_back_with_another_name_ends_the_attacher_with_a_sentence(
    short_folder: Path, api_kubeconfig: Path
):
    async with place(short_folder, api_kubeconfig) as the:
        await the.make()
        with the.attacher() as attacher:
            with the.driver():
                await eventually_answered(the.is_attached)
            with the.driver(driver={"name": "other.example.com"}):
                assert await attacher.exit_code() == 1
        assert "is now 'other.example.com'" in attacher.logged()


async def test_one_that_came_back_with_another_name_after_it_was_given_up_ends_it_too(
    short_folder: Path, api_kubeconfig: Path
):
    short = ("--leader-election-renew-deadline=1s", "--leader-election-retry-period=300ms")
    async with place(short_folder, api_kubeconfig) as the:
        await the.make()
        with the.attacher(*short) as attacher:
            with the.driver():
                await eventually_answered(the.is_attached)
            await attacher.says("driver lost")
            with the.driver(driver={"name": "other.example.com"}):
                assert await attacher.exit_code() == 1
        assert "is now 'other.example.com'" in attacher.logged()


async def test_a_driver_that_ceased_to_attach_and_began_again_is_followed_both_times(
    short_folder: Path, api_kubeconfig: Path
):
    async with place(short_folder, api_kubeconfig) as the:
        await the.make()
        with the.attacher("--http-endpoint=127.0.0.1:0") as attacher:
            with the.driver():
                await eventually_answered(the.is_attached)
                assert await the.is_protected()
            with the.driver(**NOTHING_TO_ATTACH):
                await attacher.says("driver has no attach capability")
                await the.make(2)

                async def is_told() -> bool:
                    return await the.is_attached(2)

                await eventually_answered(is_told)
                assert objects.finalizers(await the.attachment(2) or {}) == ()
                assert await the.is_protected(), "the capability may come back"
                await attacher.says("attached volumes keep the finalizer")
                assert "orlop_attacher_finalizers_kept 1.0" in answer_of(attacher, "/metrics")[1]
            with the.driver():
                await eventually_answered(lambda: the.is_protected(2))
                await eventually_answered(lambda: the.is_attached(2))
            assert not attacher.ended()
            assert 'workqueue_adds_total{name="csi-attacher-va"}' in answer_of(attacher, "/metrics")[1]


async def test_where_the_driver_attaches_nothing_explain_tells_what_its_attacher_does(
    short_folder: Path, api_kubeconfig: Path
):
    async with place(short_folder, api_kubeconfig) as the:
        await the.make()
        before = run_here("explain", "volumeattachment", the.named("va1"), f"--kubeconfig={the.kubeconfig}")
        with the.driver(**NOTHING_TO_ATTACH), the.attacher():
            await eventually_answered(the.is_attached)
        after = run_here("explain", "volumeattachment", the.named("va1"), f"--kubeconfig={the.kubeconfig}")
        assert before.stdout.endswith("If it cannot: its attacher marks it attached, and does nothing else.\n")
        assert "most likely it cannot" in after.stdout
        assert after.stdout.endswith("If it cannot: it is as it should be.\n")


async def test_a_driver_that_cannot_be_used_ends_the_attacher_with_a_sentence(short_folder: Path, api_kubeconfig: Path):
    async with place(short_folder, api_kubeconfig) as the:
        with (
            the.driver(
                script={"Probe": [{"times": 0, "error": {"code": "FAILED_PRECONDITION", "message": "no disk"}}]}
            ),
            the.attacher() as attacher,
        ):
            assert await attacher.exit_code() == 1
        assert "cannot be used: no disk" in attacher.logged()
        assert "Traceback" not in attacher.logged()


async def test_a_driver_whose_name_is_not_allowed_ends_the_attacher_with_a_sentence(
    short_folder: Path, api_kubeconfig: Path
):
    async with place(short_folder, api_kubeconfig) as the:
        await the.make()
        with the.driver(driver={"name": "mock_driver"}), the.attacher() as attacher:
            assert await attacher.exit_code() == 1
        assert "returned 'mock_driver', which is not allowed as the name of a driver" in attacher.logged()


async def test_the_trivial_handler_can_be_forced_though_the_driver_can_attach(short_folder: Path, api_kubeconfig: Path):
    async with place(short_folder, api_kubeconfig) as the:
        await the.make()
        with the.driver(), the.attacher("--trivial-handler"):
            await eventually_answered(the.is_attached)
            assert not await the.is_protected()
        assert "ControllerPublishVolume" not in the.record().read_text()


async def test_it_ends_at_once_while_it_waits_for_the_driver(short_folder: Path, api_kubeconfig: Path):
    async with place(short_folder, api_kubeconfig) as the:
        with the.attacher("--leader-election") as attacher:
            await attacher.says("waiting for the driver")
            attacher.signal(signal.SIGTERM)
            assert await attacher.exit_code() == 0


async def test_calls_and_queues_are_counted_under_upstreams_names(short_folder: Path, api_kubeconfig: Path):
    async with place(short_folder, api_kubeconfig) as the:
        await the.make()
        with the.driver(), the.attacher("--http-endpoint=127.0.0.1:0", "--metrics-path=/m") as attacher:
            await eventually_answered(the.is_attached)
            status, shown = answer_of(attacher, "/m")
            assert status == 200
            labels = f'driver_name="{the.driver_name}",grpc_status_code="OK"'
            method = 'method_name="/csi.v1.Controller/ControllerPublishVolume"'
            assert f"csi_sidecar_operations_seconds_count{{{labels},{method}}} 1.0" in shown
            for pool in ("csi-attacher-va", "csi-attacher-va-detach", "csi-attacher-pv"):
                for name in ("workqueue_depth", "orlop_workqueue_oldest_seconds"):
                    assert f'{name}{{name="{pool}"}} 0.0' in shown
                assert f'workqueue_longest_running_processor_seconds{{name="{pool}"}}' in shown
            assert answer_of(attacher, "/readyz")[0] == 200
            assert answer_of(attacher, "/healthz/leader-election")[0] == 404, "there is no lease"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--worker-threads=0"], "--worker-threads"),
        (["--timeout=0"], "--timeout cannot be '0': allowed is more than 0s."),
        (["--timeout=-5s"], "--timeout cannot be '-5s': allowed is more than 0s."),
        (["--http-endpoint=:1", "--metrics-address=:2"], "Only one of"),
        (["--leader-election", "--leader-election-lease-duration=1s"], "--leader-election"),
        (["--leader-election-renew-deadline=0s"], "--leader-election-renew-deadline"),
        (["--max-entries=2147483648"], "--max-entries cannot be '2147483648': allowed is 0 to 2147483647."),
    ],
)
def test_wrong_flags_are_refused_before_anything_begins(flags: list[str], sentence: str):
    ended = run_here("attacher", *flags)
    assert ended.returncode == 2
    assert sentence in ended.stderr


def test_the_command_line_of_upstreams_manifests_is_taken():
    ended = run_here(
        *("attacher", "--v=5", "--csi-address=/x", "--timeout=15s", "--leader-election", "--default-fstype=ext4"),
        *("--http-endpoint=:0", "--feature-gates=MutableCSINodeAllocatableCount=true", "--worker-threads=100"),
        *("--kube-api-qps=100", "--kube-api-burst=200", "--reconcile-sync=1m", "--max-entries=10", "--automaxprocs"),
        *("--leader-election-labels=a:b", "--max-grpc-log-length=1024", "--metrics-path=/m", "--version"),
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_command_line_of_the_seed_is_taken():
    assert run("attacher", "-kubeconfig", "~/.kube/config", "-v", "5", "-csi-address", "/x", "-version").returncode == 0
