"""`orlop driver` as people run it: a process with flags, a socket and signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

import orlop.__main__ as orlop_program
from orlop.csi.endpoint import parse_endpoint
from orlop.processes.csi_wiring import CsiSettings, EphemeralSettings
from orlop.processes.driver import DriverSettings
from support.host.file_systems import MOUNTS
from support.processes.orlop_process import ORLOP, run, run_here, running, tree
from support.waiting import eventually

NO_FOLDERS = "--workdir="
"""These are about the process, its flags, socket and signals; volumes have files of their own."""


def endpoint(folder: Path) -> str:
    return f"unix://{folder}/csi.sock"


async def test_it_answers_on_its_socket_until_it_is_told_to_stop(short_folder: Path):
    with running(short_folder, "driver", "--endpoint", endpoint(short_folder), "--nodeid", "n1", NO_FOLDERS) as driver:
        await driver.says("listening")
        answer = run("csi", "Identity.GetPluginInfo", "--endpoint", endpoint(short_folder))
        driver.signal(signal.SIGTERM)
        code = await driver.exit_code()

    assert json.loads(answer.stdout) == {"name": "csi.orlop.dev", "vendorVersion": "0.1.0"}
    assert code == 0
    assert not (short_folder / "csi.sock").exists()


FOLDERS_OF_ITS_OWN = {"workdir": "/srv/work", "kubelet_dir": "/srv/kubelet"}


@pytest.mark.parametrize(
    ("endpoint", "ephemeral", "path"),
    [
        ("unix:///srv/csi.sock", FOLDERS_OF_ITS_OWN, "/srv/csi.admin.sock"),
        ("unix:///srv/driver", FOLDERS_OF_ITS_OWN, "/srv/driver.admin.sock"),
        ("unix:///srv/csi.sock", {**FOLDERS_OF_ITS_OWN, "admin_socket": "/srv/a"}, "/srv/a"),
        ("unix:///srv/csi.sock", {}, ""),
        ("unix:///csi/csi.sock", FOLDERS_OF_ITS_OWN, ""),
        ("tcp://127.0.0.1:1", FOLDERS_OF_ITS_OWN, ""),
    ],
)
def test_the_admin_socket_is_beside_the_endpoint_of_a_driver_with_its_own_endpoint_and_working_directory(
    endpoint: str, ephemeral: dict[str, str], path: str
):
    """Empty: where `orlop afterlife` asks first, in /run/orlop."""
    defaults = {"workdir": "/var/lib/orlop/ephemeral", **ephemeral}
    settings = DriverSettings(
        endpoint=parse_endpoint(endpoint),
        csi=CsiSettings(node_id="n1"),
        ephemeral=EphemeralSettings(**defaults),  # type: ignore[arg-type]
    )
    assert settings.ephemeral_beside_endpoint.admin_socket == path


@MOUNTS
async def test_a_driver_with_its_own_folders_is_asked_beside_its_endpoint(short_folder: Path):
    for name in ("work", "kubelet"):
        (short_folder / name).mkdir()
    folders = [f"--workdir={short_folder}/work", f"--kubelet-dir={short_folder}/kubelet"]
    with running(short_folder, "driver", "--endpoint", endpoint(short_folder), "--nodeid=n1", *folders) as driver:
        await driver.says("listening")
        answer = run_here("afterlife", "list", "--socket", f"{short_folder}/csi.admin.sock")

    assert (answer.returncode, answer.stderr) == (0, "No folder is retained.\n")


async def test_a_driver_killed_at_once_is_replaced_by_the_next(short_folder: Path):
    for _ in range(2):
        with running(short_folder, "driver", "-endpoint", endpoint(short_folder), "-nodeid=n1", NO_FOLDERS) as driver:
            await driver.says("listening")
            assert run_here("csi", "Probe", "-e", endpoint(short_folder)).returncode == 0
            driver.signal(signal.SIGKILL)
            await driver.exit_code()
        assert (short_folder / "csi.sock").is_socket()


async def test_a_second_driver_on_a_live_socket_ends_with_its_name_and_harms_nothing(short_folder: Path):
    with running(short_folder, "driver", "--endpoint", endpoint(short_folder), "--nodeid", "n1", NO_FOLDERS) as driver:
        await driver.says("listening")
        second = run("driver", "--endpoint", endpoint(short_folder), "--nodeid", "n2", NO_FOLDERS)
        answer = run_here("csi", "Probe", "-e", endpoint(short_folder))

    assert second.returncode == 1
    assert f"{short_folder}/csi.sock" in second.stderr
    assert "Traceback" not in second.stderr
    assert json.loads(answer.stdout) == {"ready": True}


async def test_the_log_is_json_when_asked(short_folder: Path):
    flags = ["--endpoint", endpoint(short_folder), "--nodeid", "n1", NO_FOLDERS, "--log-format=json", "--v=5"]
    with running(short_folder, "driver", *flags) as driver:
        await driver.says("listening")
        run_here("csi", "Probe", "-e", endpoint(short_folder))
        await driver.says("Identity.Probe")
        events = [json.loads(line) for line in driver.logged().splitlines()]

    assert {"ts", "level", "msg"} <= set(events[0])
    assert events[-1]["method"] == "Identity.Probe"
    assert events[-1]["level"] == "debug"


async def test_metrics_and_health_are_served_where_asked(short_folder: Path):
    flags = ["--endpoint", endpoint(short_folder), "--nodeid", "n1", NO_FOLDERS, "--http-endpoint=127.0.0.1:0"]
    with running(short_folder, "driver", *flags) as driver:
        await driver.says("serving HTTP")
        run_here("csi", "Probe", "-e", endpoint(short_folder))
        address = driver.logged().partition("serving HTTP")[2].partition("address=")[2].split()[0].strip('"')
        metrics = urlopen(f"http://{address}/metrics").read().decode()
        ready = urlopen(f"http://{address}/readyz?verbose").read().decode()

    assert "orlop_build_info{" in metrics
    assert 'version="0.1.0"' in metrics
    assert "csi_plugin_operations_seconds_count" in metrics
    assert "[+]" in ready


LONG = "/" + "a" * 120

WRONG_FLAGS = [
    (["--nodeid", "n1", "--endpoint", "http://x"], ["--endpoint", "'http://x'", "unix://"]),
    (["--nodeid", "n1", "--endpoint", "unix:///missing/folder/csi.sock"], ["--endpoint", "/missing/folder"]),
    (["--nodeid", "n1", "--endpoint", f"unix://{LONG}"], ["--endpoint", "107"]),
    (["--endpoint", "unix:///tmp/x.sock"], ["--nodeid", "required"]),
    (["--nodeid", "n1", "--nosuchflag"], ["--nosuchflag"]),
    (["--nodeid", "n1", "--drivrname=x"], ["--drivrname", "--drivername"]),
    (["--nodeid", "n1", "--drivername", "-bad-"], ["--drivername", "'-bad-'", "63"]),
    (["--nodeid", "x" * 300], ["--nodeid", "256"]),
    (["--nodeid", os.fsdecode(b"\xff")], ["--nodeid", "UTF-8"]),
    (["--nodeid", "n1", "--grace-period", "soon"], ["--grace-period", "'soon'"]),
    (["--nodeid", "n1", "--grace-period", "-1s"], ["--grace-period", "'-1s'"]),
    (["--nodeid", "n1", "--log-level", "loud"], ["--log-level", "'loud'", "debug"]),
    (["--nodeid", "n1", "--http-endpoint", "nonsense"], ["--http-endpoint", "'nonsense'"]),
    (["--nodeid", "n1", "stray"], ["'stray'"]),
    (["--nodeid"], ["--nodeid", "value"]),
]


@pytest.mark.parametrize(("flags", "named"), WRONG_FLAGS, ids=[" ".join(flags)[:50] for flags, _ in WRONG_FLAGS])
def test_a_wrong_flag_is_named_with_its_value_before_anything_starts(
    flags: list[str], named: list[str], short_folder: Path
):
    if not any("--endpoint" in flag for flag in flags):
        flags = ["--endpoint", endpoint(short_folder), *flags]

    ended = run_here("driver", NO_FOLDERS, *flags)

    assert ended.returncode == 2
    assert [text for text in named if text not in ended.stderr] == []
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
    assert tree(short_folder) == []


def test_all_wrong_flags_are_named_at_once():
    ended = run_here("driver", "--endpoint=ftp://x", "--log-level=loud", "--what")

    assert ended.returncode == 2
    assert [text for text in ("ftp://x", "loud", "--what", "--nodeid") if text not in ended.stderr] == []


@pytest.mark.parametrize("spelling", ["-h", "--help", "-help"])
def test_help_lists_every_flag_and_is_no_error(spelling: str):
    ended = run_here("driver", spelling)

    assert ended.returncode == 0
    assert [
        flag for flag in ("--endpoint", "--nodeid", "--drivername", "--grace-period") if flag not in ended.stdout
    ] == []


def test_the_program_says_what_it_can_be_and_which_version_it_is():
    shown = run()

    assert shown.returncode == 0
    assert "orlop driver" in shown.stdout
    assert "orlop csi" in shown.stdout
    assert run("--version").stdout == "orlop 0.1.0\n"


@pytest.mark.parametrize("arguments", [["--help"], ["driver", "--help"], ["csi", "--list"]])
def test_a_reader_who_leaves_early_sees_no_traceback(arguments: list[str]):
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([*ORLOP, *arguments], check=False, stdout=writer, stderr=subprocess.PIPE, timeout=200)
    os.close(writer)

    assert (ended.returncode, ended.stderr) == (1, b"")


def test_an_interrupt_while_a_role_is_imported_shows_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(orlop_program, "import_module", interrupted)
    monkeypatch.setattr(sys, "argv", ["orlop", "driver"])

    with pytest.raises(SystemExit, match="130"):
        orlop_program.main()
    assert capfd.readouterr() == ("", "")


def is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
async def test_a_driver_needs_no_open_stream(short_folder: Path, closed: str):
    flags = ["driver", NO_FOLDERS, "--nodeid=n1", "--endpoint", endpoint(short_folder)]
    with subprocess.Popen(["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *ORLOP, *flags]) as process:  # noqa: ASYNC220 - it returns at once
        try:
            # The file is there a moment before the process listens, and there may be no log that says when.
            await eventually(lambda: is_listening(short_folder / "csi.sock") or process.poll() is not None)
            answered = await asyncio.to_thread(run_here, "csi", "Probe", "-e", endpoint(short_folder))
            process.send_signal(signal.SIGTERM)
            assert process.wait(150) == 0
        finally:
            process.kill()

    assert answered.returncode == 0


@pytest.mark.parametrize("role", ["driver", "node"])
def test_who_only_answers_calls_loads_no_grpc(role: str):
    """It is a fifth of a driver's memory."""
    parts = ", ".join(f"orlop.processes.{each}" for each in (role, "csi_wiring", "ephemeral_wiring", "http_wiring"))
    look = f"import sys, {parts}; sys.exit(bool({{'grpc', 'aiohttp'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", look], check=False).returncode == 0


async def test_a_driver_that_has_answered_has_nothing_of_grpc_in_its_memory(short_folder: Path):
    with running(short_folder, "driver", "--endpoint", endpoint(short_folder), "--nodeid", "n1", NO_FOLDERS) as driver:
        await driver.says("listening")
        assert run_here("csi", "Probe", "-e", endpoint(short_folder)).returncode == 0
        mapped = Path(f"/proc/{driver.process.pid}/maps").read_text()

    assert "cygrpc" not in mapped


def test_what_there_is_not_is_named_and_the_nearest_offered():
    ended = run_here("drvier")

    assert ended.returncode == 2
    assert "'drvier'" in ended.stderr
    assert "orlop driver" in ended.stderr


async def test_a_second_signal_ends_it_at_once(short_folder: Path):
    script = short_folder / "script.yaml"
    script.write_text("script: {Probe: [{hang: true, times: 0}]}\n")
    flags = ["--endpoint", endpoint(short_folder), "--script", str(script), "--v=5"]
    with running(short_folder, "testing", "mock-driver", *flags) as driver:
        await driver.says("listening")
        with running(short_folder, "csi", "Probe", "-e", endpoint(short_folder), "--timeout", "1m"):
            await driver.says("call begun")
            driver.signal(signal.SIGTERM)
            await driver.says("stop requested")
            driver.signal(signal.SIGTERM)  # the same again: passed on by a parent
            await eventually(lambda: driver.signal(signal.SIGTERM) or driver.ended())
            assert await driver.exit_code() == 128 + signal.SIGTERM

    assert driver.logged().count("stop requested a second time") == 1


async def test_a_system_call_that_hangs_does_not_hold_the_process_longer_than_the_grace_period(short_folder: Path):
    stuck = [sys.executable, "-W", "error", str(Path(__file__).with_name("stuck_driver.py"))]
    with running(short_folder, f"--endpoint={endpoint(short_folder)}", "--v=5", program=stuck) as driver:
        await driver.says("listening")
        with running(short_folder, "csi", "Probe", "-e", endpoint(short_folder), "--timeout", "1m"):
            await driver.says("call begun")
            driver.signal(signal.SIGTERM)
            assert await driver.exit_code() == 0

    assert "still running after the grace period" in driver.logged()
    assert not (short_folder / "csi.sock").exists()
