"""What provisions beside a machine of the journeys: binder, protection of storage, and the driver's provisioner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from orlop.csi.in_process_transport import InProcessConnection
from orlop.sidecars.provisioner.provisioner_settings import ProvisionerSettings
from orlop.sidecars.provisioner.provisioning_controller import provisioning_controller
from support.attaching.attaching_machines import DriversController
from support.csi.driver_lives import csi_client
from support.kubelet.journey_machines import Machine, UncountedWay
from support.kubelet.volume_worlds import DRIVER, NODE_NAME
from support.provisioning.binding_worlds import BindingWorld
from support.provisioning.provisioner_worlds import JOURNAL_NAMESPACE, used_caches
from support.worlds import running


@asynccontextmanager
async def provisioning_beside(machine: Machine) -> AsyncIterator[None]:
    async with (
        BindingWorld(on=machine.world.on) as binding,
        binding.binder(),
        binding.protection(),
        _provisioner(machine),
    ):
        yield


@asynccontextmanager
async def _provisioner(machine: Machine) -> AsyncIterator[None]:
    connection = InProcessConnection(DriversController(machine))
    way = UncountedWay(machine)
    async with AsyncExitStack() as ends, machine.world.controller_parts("provisioner", way, NODE_NAME) as the:
        ends.push_async_callback(connection.close)
        csi = csi_client(connection, the.runtime)
        capabilities = await csi.controller_capabilities()
        async with used_caches(the.informers, capabilities) as caches:
            controller = provisioning_controller(
                caches,
                ProvisionerSettings(driver=DRIVER, identity="p-1"),
                runtime=the.runtime,
                kube=the.kube,
                csi=csi,
                events=the.events,
                queue_metrics=the.queue_metrics,
                namespace=JOURNAL_NAMESPACE,
                capabilities=capabilities,
                may_act=lambda: None,
            )
            async with running(controller.run()):
                yield
