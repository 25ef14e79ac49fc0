"""A CSI driver as a process that really mounts: volumes are images on loop devices, staged once, bound for each pod.

It announces itself, plays a script, and writes a line for each call: its method and request, and for secrets only
their digests. Of an inline volume the attributes may ask for harm: `makes: nothing` leaves no target, `makes: folder`
mounts nothing on it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orlop.csi import redacted_messages
from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.interceptor import CallInterceptor, methods_of
from orlop.csi.proto import rpc
from orlop.csi.server import serving
from orlop.foundation.go_flags import flag, group, text
from orlop.foundation.runtime import Runtime
from orlop.processes.daemon import Daemon, LogSettings, request_ids, run_daemon
from orlop.sidecars.registrar.registration_socket import RegistrationService, RegistrationStatus
from orlop.testing.driver_model.storage import NodePath, VolumeUse
from orlop.testing.driver_script import script_from_yaml
from orlop.testing.scripted_driver import ScriptedDriver, ScriptedInterceptor

BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Settings:
    kubelet_dir: str = flag(text, required=True, help="Kubelet's folder.")
    socket: str = flag(text, required=True, help="The name of both sockets' files, without their ends.")
    folder: str = flag(text, required=True, help="Where images are kept, the script is read and calls are recorded.")
    log: LogSettings = group(LogSettings)


class MountingInterceptor(ScriptedInterceptor):
    """Mounts after the model has said yes, and unmounts before it is asked; again and again without harm."""

    def __init__(self, folder: Path, driver: ScriptedDriver, **given: Any) -> None:
        super().__init__(driver, **given)
        self._images = folder
        self._storage = driver.storage
        self._record = folder / "calls.jsonl"

    async def answer(self, path: str, message: bytes) -> bytes:
        method = rpc.BY_PATH[path]
        request = method.request.FromString(message)
        self._note(method.name, request)
        await asyncio.to_thread(self._before, method.name, request)
        answer = await super().answer(path, message)
        await asyncio.to_thread(self._after, method.name, request)
        return answer

    def _note(self, method: str, request: Any) -> None:
        digests = {key: hashlib.sha256(value.encode()).hexdigest() for key, value in secrets_of(request).items()}
        line = {"method": method, "request": redacted_messages.printable(request), "digests": digests}
        with self._record.open("a") as record:
            record.write(json.dumps(line) + "\n")

    def _before(self, method: str, request: Any) -> None:
        match method:
            case "NodePublishVolume" if request.staging_target_path:
                self._remember(request)
            case "NodeUnpublishVolume":
                unmount(Path(request.target_path))
                if Path(request.target_path).is_dir():
                    shutil.rmtree(request.target_path)  # where nothing was mounted, the pod may have written
            case "NodeUnstageVolume":
                unmount(Path(request.staging_target_path))

    def _remember(self, request: Any) -> None:
        """What an earlier life of ours staged is known by its mount."""
        if Path(request.staging_target_path).is_mount():
            volume = self._storage.volumes.get(request.volume_id) or self._storage.add_volume(request.volume_id, BYTES)
            volume.staged[NodePath("n", request.staging_target_path)] = VolumeUse(request.volume_capability)

    def _after(self, method: str, request: Any) -> None:
        match method:
            case "NodeStageVolume":
                self._mount_image(request.volume_id, Path(request.staging_target_path))
            case "NodePublishVolume":
                self._publish(request, Path(request.target_path))

    def _publish(self, request: Any, target: Path) -> None:
        asked = request.volume_context.get("makes", "")
        if asked == "nothing":
            return
        target.mkdir(exist_ok=True)
        if asked == "folder" or target.is_mount():
            return
        if request.staging_target_path:
            run("mount", "--bind", request.staging_target_path, target)
        else:
            run("mount", "-t", "tmpfs", "tmpfs", target)

    def _mount_image(self, volume: str, target: Path) -> None:
        image = self._images / f"{volume}.img"
        if not image.exists():
            with image.open("wb") as file:
                file.truncate(BYTES)
            run("mkfs.ext4", "-q", image)
        if not target.is_mount():
            run("mount", "-o", "loop", image, target)


def secrets_of(request: Any) -> dict[str, str]:
    return dict(getattr(request, "secrets", {}))


def unmount(target: Path) -> None:
    while target.is_mount():
        run("umount", target)


def run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


async def live(settings: Settings, runtime: Runtime, stop: asyncio.Event) -> None:
    folder, kubelet = Path(settings.folder), Path(settings.kubelet_dir)
    script = script_from_yaml((folder / "script.yaml").read_text())
    driver = ScriptedDriver(script, runtime.clock)
    name, surroundings = script.facts.name, {"log": runtime.log, "metrics": runtime.metrics, "clock": runtime.clock}
    own = kubelet / "plugins" / f"{settings.socket}.sock"

    def told(outcome: RegistrationStatus) -> None:
        runtime.log.info("kubelet says", registered=outcome.registered, why=outcome.error)

    registration = CallInterceptor(
        methods_of(RegistrationService(name, str(own), told)),
        driver_name=name,
        new_id=request_ids(runtime.random),
        **surroundings,
    )
    announced = UnixEndpoint(str(kubelet / "plugins_registry" / f"{settings.socket}.sock"))
    calls = MountingInterceptor(folder, driver, **surroundings)
    async with (
        serving(UnixEndpoint(str(own)), calls, grace=0.2, log=runtime.log),
        serving(announced, registration, grace=0.2, log=runtime.log),
    ):
        await stop.wait()


if __name__ == "__main__":
    sys.exit(run_daemon(Daemon("mounting-driver", "Mounts images.", Settings), sys.argv[1:], live))
