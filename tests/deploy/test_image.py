"""deploy/Dockerfile: what the image is made from is fixed, and is what the repository says."""

from __future__ import annotations

import json
import re
import tomllib

import yaml

from orlop.__main__ import UPSTREAM_PROGRAMS
from support.places import REPOSITORY

DOCKERFILE = (REPOSITORY / "deploy" / "Dockerfile").read_text()
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def instructions(kind: str) -> list[str]:
    joined = DOCKERFILE.replace("\\\n", " ")
    return [line.removeprefix(kind).strip() for line in joined.splitlines() if line.startswith(f"{kind} ")]


def image_of_the_node() -> str:
    manifests = yaml.safe_load_all((REPOSITORY / "deploy" / "manifests" / "node.yaml").read_text())
    (node,) = [each for each in manifests if each["kind"] == "DaemonSet"]
    return node["spec"]["template"]["spec"]["containers"][0]["image"]


def test_every_base_is_the_python_that_the_project_is_written_for():
    oldest = PROJECT["requires-python"].removeprefix(">=")
    own_stages = {each.split()[2] for each in instructions("FROM") if " AS " in each}
    assert {each.split()[0] for each in instructions("FROM")} - own_stages == {f"python:{oldest}-slim"}
    assert "latest" not in DOCKERFILE


def test_nothing_is_installed_that_the_lock_does_not_name_with_its_hash():
    installs = [command.strip() for run in instructions("RUN") for command in re.split("&&|;", run)]
    first, second = [command for command in installs if command.startswith("pip install")]
    assert first.endswith("--require-hashes -r /build/requirements/run.lock")
    assert {"--no-index", "--no-deps", "--no-build-isolation"} <= {*second.split()}
    assert all("--no-cache-dir" in command for command in (first, second))
    assert not re.search(r"apt|apk|curl|wget|https?://", DOCKERFILE)


def test_what_the_project_is_built_with_is_in_the_lock_and_not_in_the_image():
    lock = {
        line.split("==")[0]
        for line in (REPOSITORY / "requirements/run.lock").read_text().splitlines()
        if re.match(r"[a-z0-9]", line)
    }
    built_with = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]["requires"]
    assert {*built_with} <= lock
    (removed,) = [run for run in instructions("RUN") if "pip uninstall" in run]
    assert {*built_with, "pip"} <= {*removed.split()}


def test_what_is_copied_is_there_and_reaches_the_build():
    allowed = [
        line.removeprefix("!") for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if "!" in line
    ]
    copied = [word for line in instructions("COPY") if "--from" not in line for word in line.split()[:-1]]
    assert sorted(copied) == sorted(allowed)
    assert all((REPOSITORY / path).exists() for path in copied)


def test_the_program_is_started_without_a_shell_and_the_manifest_gives_its_words():
    assert [json.loads(each) for each in instructions("ENTRYPOINT")] == [
        ["orlop"],
        ["/csi-attacher"],
        ["/csi-provisioner"],
    ]
    assert instructions("FROM")[-1] == "orlop", "what is built when no target is named is the image of all roles"
    assert "orlop" in PROJECT["scripts"]
    assert instructions("CMD") == []


def test_the_program_is_where_the_commands_of_upstreams_pods_look_for_it():
    stage = DOCKERFILE.partition(" AS orlop\n")[2].partition("\nFROM ")[0].replace("\\\n", " ")
    (names,) = re.findall(r'for name in (.*); do ln -s /opt/orlop/bin/orlop "/\$name"; done', stage)
    assert names.split() == list(UPSTREAM_PROGRAMS)
    assert "COPY --from=build /opt/orlop /opt/orlop" in stage


def images_of_attachers() -> set[str]:
    folder = REPOSITORY / "deploy" / "manifests" / "attacher"
    found = [each for file in folder.rglob("*.yaml") for each in yaml.safe_load_all(file.read_text())]
    pods = [each["spec"]["template"]["spec"] for each in found if "template" in each.get("spec", {})]
    return {one["image"] for pod in pods for one in pod["containers"] if one["name"] == "attacher"}


def test_the_documentation_names_every_manifest_that_holds_the_images_name():
    # Kustomizations have it in one file.
    manifests = [
        file
        for file in (REPOSITORY / "deploy" / "manifests").rglob("*.yaml")
        if file.parent.name not in {"any-driver", "drives", "static"}
    ]
    holding = [file for file in manifests if f"image: {image_of_the_node()}\n" in file.read_text()]
    told = (REPOSITORY / "deploy" / "README.md").read_text().partition("docker build")[0]

    assert holding
    assert [file for file in holding if f"`{file.relative_to(REPOSITORY / 'deploy')}`" not in told] == []


def test_the_image_has_the_name_that_every_manifest_asks_for():
    assert images_of_attachers() == {image_of_the_node()}
    assert image_of_the_node() == f"orlop:{PROJECT['version']}"
    assert f"-t {image_of_the_node()} ." in DOCKERFILE
    assert f"-t {image_of_the_node()} ." in (REPOSITORY / "deploy" / "README.md").read_text()
