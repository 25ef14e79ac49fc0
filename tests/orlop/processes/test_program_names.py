"""The one program under the names of upstream's, as their images and documents call them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from orlop import __version__
from orlop.__main__ import PLUGIN, ROLES, UPSTREAM_PROGRAMS, VERBS, arguments_of
from support.attaching.attacher_places import place
from support.places import REPOSITORY
from support.processes.kubectl_local import KUBECTL
from support.processes.orlop_process import run_here, running
from support.waiting import eventually_answered

ORLOP = Path(sys.executable).with_name("orlop")
AS_TYPED = "csi-attacher -kubeconfig ~/.kube/config -v 5 -csi-address /run/csi/socket"


def called(folder: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / name).symlink_to(ORLOP)
    return subprocess.run([folder / name, *arguments], check=False, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["/csi-attacher", "-v", "5"], ["attacher", "-v", "5"]),
        (["csi-attacher"], ["attacher"]),
        (["/csi-provisioner", "-v", "5"], ["provisioner", "-v", "5"]),
        (["./csi-node-driver-registrar", "--help"], ["registrar", "--help"]),
        (["/usr/bin/orlop", "attacher", "--help"], ["attacher", "--help"]),
        (["/usr/bin/orlop"], []),
        (["/src/orlop/__main__.py", "csi-attacher"], ["csi-attacher"]),
        (["/csi-attacher/orlop", "registrar"], ["registrar"]),
        ([], []),
    ],
)
def test_the_name_that_it_is_called_by_counts_as_the_first_word(argv: list[str], words: list[str]):
    assert arguments_of(argv) == words


@pytest.mark.parametrize("words", [["testing", "foo"], ["testing"], ["testing", "--foo"]])
def test_a_first_word_without_its_second_is_told_with_what_there_is(words: list[str]):
    told = run_here(*words)
    sentence = f"orlop: there is no '{' '.join(words)}'. There is 'orlop testing mock-driver'.\n"
    assert (told.returncode, told.stdout, told.stderr) == (2, "", sentence)


def test_the_first_of_two_words_explains_itself():
    told = run_here("testing", "--help")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("Usage: orlop testing NAME")
    assert "  orlop testing mock-driver  serves a scripted CSI driver" in told.stdout
    assert "orlop attacher" not in told.stdout


@pytest.mark.parametrize("verb", [*VERBS])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_verb_explains_itself_with_nothing_running(tmp_path: Path, verb: str, flag: str):
    elsewhere = [f"--state={tmp_path}"] if verb == "kubectl" else []  # an `orlop up` may run on this machine
    told = run_here(verb, *elsewhere, flag)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith(f"Usage: orlop {verb} ")


def test_every_name_is_that_of_a_role():
    assert set(UPSTREAM_PROGRAMS.values()) <= set(ROLES)


@pytest.mark.parametrize(("name", "role"), UPSTREAM_PROGRAMS.items())
def test_a_link_of_upstreams_name_is_that_role_with_its_flags(tmp_path: Path, name: str, role: str):
    told = called(tmp_path, name, "--help")
    assert (told.returncode, told.stderr) == (0, "")
    assert f"Usage: orlop {role} [flags]" in told.stdout


def test_of_its_version_each_says_which_role_it_is(tmp_path: Path):
    for name, role in (("csi-attacher", "attacher"), ("csi-provisioner", "provisioner")):
        assert called(tmp_path, name, "--version").stdout == f"orlop {role} {__version__}\n"


def test_nothing_is_imported_for_a_name_but_what_it_stands_for():
    looked = "print(sorted(name for name in sys.modules if name.startswith('orlop')))"
    asked = (
        "import sys; import orlop.__main__ as program; program.run(program.arguments_of(['/csi-attacher', '-version']))"
    )
    told = subprocess.run(
        [sys.executable, "-c", f"{asked}; {looked}"], check=True, capture_output=True, text=True, timeout=200
    )
    assert told.stdout.splitlines()[1] == "['orlop', 'orlop.__main__']"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], "  kubectl orlop drives "),
        (["drives", "--help"], "Usage: kubectl orlop drives [OPTIONS] COMMAND"),
        (["drives", "init", "--help"], "Usage: kubectl orlop drives init [OPTIONS] NODE/DEVICE..."),
        (["explain", "--help"], "Usage: kubectl orlop explain [OPTIONS]"),
        (["version"], f"orlop {__version__}"),
    ],
)
def test_kubectl_runs_it_as_its_plugin_and_help_texts_name_that_command(tmp_path: Path, words: list[str], shown: str):
    (tmp_path / "kubectl-orlop").symlink_to(ORLOP)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    command = [str(KUBECTL), "orlop", *words]
    told = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200, env=environment)
    assert (told.returncode, told.stderr) == (0, "")
    assert shown in told.stdout
    assert "orlop down" not in told.stdout


def test_the_plugin_is_installed_beside_the_program():
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts[PLUGIN] == scripts["orlop"]


async def test_the_command_line_of_the_seed_attaches_as_it_is_typed(short_folder: Path, api_kubeconfig: Path):
    """In a shell, by its own name, and with the driver where the line says it is: in a /run of its own."""
    home, programs = short_folder / "home", short_folder / "bin"
    for folder in (home / ".kube", programs):
        folder.mkdir(parents=True)
    (home / ".kube" / "config").symlink_to(api_kubeconfig)
    (programs / "csi-attacher").symlink_to(ORLOP)
    socket = shlex.quote(str(short_folder / "csi.sock"))
    own_run = f"mount -t tmpfs none /run && mkdir /run/csi && ln -s {socket} /run/csi/socket"
    environment = ("env", f"HOME={home}", f"PATH={programs}:{os.environ['PATH']}")
    shell = [*environment, "unshare", "--mount", "sh", "-c", f"{own_run} && exec {AS_TYPED}"]
    async with place(short_folder, api_kubeconfig) as the:
        await the.make()
        with the.driver(), running(short_folder, program=shell) as attacher:
            await eventually_answered(the.is_attached)
            await the.delete()
            await eventually_answered(the.is_gone)
            attacher.signal(signal.SIGTERM)
            assert await attacher.exit_code() == 0
        assert " debug " in attacher.logged()
