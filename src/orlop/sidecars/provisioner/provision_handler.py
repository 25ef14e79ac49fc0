"""Provision one claim, step by step, as `claim_rules` decides.

Order of effects: record the order → CreateVolume → create the PersistentVolume → forget the order. If the process is
killed after any of them, the next one finds the order in the journal and resumes (`claim_rules`). Failures are recorded
as events of the claim, with upstream's words; no event, log line or journal entry ever holds a secret's value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from math import ceil
from typing import Final

from orlop.binding import claim_state_rules as state
from orlop.csi.error_codes import CsiError, Delivery, InvalidArgument, ResourceExhausted
from orlop.csi.proto import csi_pb2
from orlop.foundation.runtime import Runtime
from orlop.kube import objects
from orlop.kube.api_errors import StatusError
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.queue.reconcile_loop import Done, Failed, Outcome, RetryAfter
from orlop.records.provision_journal import JournalEntry, PageOverflow
from orlop.records.volume_order import VolumeOrder
from orlop.sidecars.provisioner import uncertain_order_rules
from orlop.sidecars.provisioner.claim_cache import ClaimCache
from orlop.sidecars.provisioner.claim_rules import (
    BeginOrder,
    CallDriver,
    DeleteAgain,
    ForgetOrder,
    NoClaimStep,
    OpenOrder,
    ProvisioningFacts,
    ProvisioningStep,
    ReportNameTaken,
    ReportUnusable,
    SaveVolume,
    WaitUntil,
    is_rebuildable,
    is_wanted,
    next_claim_step,
)
from orlop.sidecars.provisioner.create_request_rules import UnusableVolume, create_request, fault_of_volume
from orlop.sidecars.provisioner.failure_reports import (
    NotProvisioned,
    ProvisioningReports,
    claim_reference,
    printable_sentence,
    refused_request,
    rpc_error,
    shown_id,
)
from orlop.sidecars.provisioner.open_orders import OpenOrders
from orlop.sidecars.provisioner.order_building import OrderBuilder
from orlop.sidecars.provisioner.order_journal import OrderJournal
from orlop.sidecars.provisioner.parameter_rules import SecretUse
from orlop.sidecars.provisioner.provisioner_metrics import ProvisionerMetrics
from orlop.sidecars.provisioner.provisioner_settings import (
    HAS_TOPOLOGY,
    ApiObject,
    ProvisionerCaches,
    ProvisionerSettings,
)
from orlop.sidecars.provisioner.unconfirmed_claims import UnconfirmedClaims
from orlop.sidecars.provisioner.volume_calls import SecretUnavailable, VolumeCalls, may_still_run
from orlop.sidecars.provisioner.volume_order_rules import (
    LeaveClaim,
    PlaceOrder,
    RefuseClaim,
    ReturnToScheduler,
    volume_name,
)
from orlop.sidecars.provisioner.volume_saving import VolumeSaving

MOST_STEPS: Final = 12
"""Steps of one reconciliation. The longest path without interference is shorter: this ends an endless loop."""


class ProvisionHandler:
    def __init__(  # noqa: PLR0913 - all of it by name
        self,
        caches: ProvisionerCaches,
        settings: ProvisionerSettings,
        *,
        runtime: Runtime,
        calls: VolumeCalls,
        events: EventRecorder,
        journal: OrderJournal,
        orders: OrderBuilder,
        open_orders: OpenOrders,
        claims: ClaimCache,
        saving: VolumeSaving,
        unconfirmed: UnconfirmedClaims,
        metrics: ProvisionerMetrics,
        capabilities: frozenset[str],
        may_act: Callable[[], None],
    ) -> None:
        """`may_act` raises if this process has lost its lease; it is called before each effect."""
        self._caches = caches
        self._settings = settings
        self._clock = runtime.clock
        self._log = runtime.log
        self._calls = calls
        self._events = events
        self._journal = journal
        self._orders = orders
        self._metrics = metrics
        self._capabilities = capabilities
        self._may_act = may_act
        self._open = open_orders
        self._claims = claims
        self._saving = saving
        self._unconfirmed = unconfirmed
        self._reports = ProvisioningReports(events, metrics)

    def forget_claim(self, uid: str) -> None:
        """Drop what is kept for a claim that is gone from the cache and has no open order."""
        self._saving.forget_claim(uid)
        self._unconfirmed.forget(uid)
        self._claims.forget(uid)
        self._metrics.end(uid)

    async def reconcile(self, uid: str) -> Outcome:
        try:
            return await self._reconcile(uid)
        except StatusError as error:
            if (sentence := refused_request(error)) is None:
                raise
            return self._report(uid, sentence)
        finally:
            opened = self._open.get(uid)
            self._metrics.uncertain(uid, is_uncertain=opened is not None and bool(opened.uncertain))

    async def _reconcile(self, uid: str) -> Outcome:
        for _ in range(MOST_STEPS):
            step = next_claim_step(await self._facts(uid))
            if isinstance(step, NoClaimStep):
                return Done()
            outcome = await self._take(step, uid)
            if outcome is not None:
                return outcome
        return Failed(NotProvisioned(f"the claim {uid} changed in each of {MOST_STEPS} steps"))

    async def _facts(self, uid: str) -> ProvisioningFacts:
        claim = await self._claims.current(uid)
        opened = self._open.get(uid)
        name = opened.order.volume_name if opened is not None else self._new_name(uid)
        is_saved = self._saving.is_saved(uid, name, opened)
        taken_by = "" if opened is not None else self._saving.owner_of_name(uid, name)
        return ProvisioningFacts(claim, opened, is_saved, self._settings.driver, self._clock.elapsed(), taken_by)

    def _new_name(self, uid: str) -> str:
        return volume_name(uid, self._settings.volume_name_prefix, self._settings.volume_name_uuid_length)

    # ---- steps ---------------------------------------------------------------------------------------------------

    async def _take(self, step: ProvisioningStep, uid: str) -> Outcome | None:  # noqa: PLR0911 - one for each step
        """Take a step. Return None to decide the next one at once."""
        match step:
            case BeginOrder(claim):
                return await self._begin(claim, uid)
            case CallDriver(order):
                return await self._call(order, uid)
            case SaveVolume(order, volume):
                await self._saving.save(order, volume, uid)
                return None
            case DeleteAgain(order, volume_id, fault):
                return await self._delete_again(order, volume_id, fault, uid)
            case ForgetOrder(order, reason, is_leak):
                if is_leak:
                    self._log.error("volume may be leaked", volume=order.volume_name, reason=reason)
                return self._forget(uid)
            case ReportUnusable() | ReportNameTaken():
                return self._report_step(step, uid)
            case WaitUntil(instant):
                return RetryAfter(max(0.0, instant - self._clock.elapsed()))
            case NoClaimStep():
                return Done()

    def _report_step(self, step: ReportUnusable | ReportNameTaken, uid: str) -> Outcome:
        if isinstance(step, ReportUnusable):
            # Drop the result, so that the next attempt calls the driver again: it may have been fixed by then.
            self._open.change(uid, volume=None, fault=None)
            return self._report(uid, step.reason, slowly=True)
        reason = f"the PersistentVolume {self._new_name(uid)} exists and belongs to {step.owner}"
        return self._report(uid, f"{reason}: delete it, or use a longer --volume-name-uuid-length")

    def _forget(self, uid: str) -> Outcome:
        self._close(uid)
        if self._claims.cached(uid) is not None:
            self._unconfirmed.add(uid)
        return Done()

    async def _begin(self, claim: ApiObject, uid: str) -> Outcome | None:
        opened = self._open.get(uid)
        if opened is None and not await self._unconfirmed.is_wanted(claim):
            return Done()  # The cache will show why.
        self._metrics.begin(uid, self._clock.elapsed())
        name = opened.order.volume_name if opened is not None else ""
        match await self._orders.decide(claim, self._capabilities, name):
            case PlaceOrder(order):
                sentence = f'External provisioner is provisioning volume for claim "{objects.name_of(claim)}"'
                self._events.normal(claim_reference(claim), "Provisioning", sentence)
                rival = self._open.by_volume_name(order.volume_name)
                if rival is not None and rival.order.claim.uid != uid:
                    # CreateVolume is idempotent by name: the driver would return the same volume for both claims.
                    other = f"{rival.order.claim.namespace}/{rival.order.claim.name}"
                    reason = f"a volume {order.volume_name} is being created for the claim {other}"
                    return self._report(uid, f"{reason}: use a longer --volume-name-uuid-length")
                self._open.begin(order)
                return None
            case RefuseClaim(reason):
                of_class = f'failed to provision volume with StorageClass "{state.class_name(claim)}"'
                return self._report(uid, f"{of_class}: {reason}")
            case ReturnToScheduler(reason):
                return await self._return_to_scheduler(claim, self._report(uid, reason))
            case LeaveClaim(reason, announcement):
                if announcement:
                    self._events.normal(claim_reference(claim), "Provisioning", announcement)
                self._log.debug("claim left alone", claim=str(objects.name_of(claim)), reason=reason)
                return Done()

    # ---- creating ------------------------------------------------------------------------------------------------

    async def _call(self, order: VolumeOrder, uid: str) -> Outcome | None:
        before = self._open[uid]
        try:
            # Read the secret before recording the order: without the secret there is no call, and nothing to record.
            secrets = await self._secrets(order, uid)
            request = create_request(order, self._capabilities, secrets)
            deadline = await self._record(uncertain_order_rules.before_call(before, order), uid)
        except (SecretUnavailable, PageOverflow) as error:
            # The class may have been created anew with another secret.
            self._open.change(uid, is_refused=True)
            return self._report(uid, str(error))
        finally:
            self._drop_unrecorded(uid)
        if not before.uncertain and not is_rebuildable(self._claims.cached(uid), self._settings.driver):
            # The claim is gone or is being deleted since it was read, and the driver was never called for it.
            self._close(uid)
            return None
        began = self._clock.elapsed()
        try:
            # Only after the order is durable: if this process dies during the call, the next one finds the order.
            volume = await self._calls.create(request, deadline)
        except CsiError as error:
            return await self._call_failed(error, before, uid, began=began, deadline=deadline)
        self._open.change(uid, volume=volume, fault=self._fault(order, volume), is_being_deleted=False)
        return None

    async def _secrets(self, order: VolumeOrder, uid: str) -> Mapping[str, str]:
        """Return the secret for CreateVolume. Raises `SecretUnavailable` if the call is to provision a claim."""
        reference = order.secret_for(SecretUse.PROVISION.value)
        if is_wanted(self._claims.cached(uid), order):
            return await self._calls.secrets(reference)
        # The call is to learn the id of a volume that has to be deleted. When a namespace is deleted, the secret is
        # gone together with the claim, and without a call the volume would be leaked.
        return await self._calls.secrets_if_any(reference)

    async def _record(self, opened: OpenOrder, uid: str, *, is_being_deleted: bool = False) -> float:
        """Make the order and the deadline of the next call durable; return the deadline, in elapsed time."""
        now, timeout = self._clock.elapsed(), self._settings.timeout
        deadline = now + timeout
        # An earlier call may run longer than the next one: it was made by a process with a longer --timeout.
        seconds = max(timeout, opened.may_run_until - now)
        # Whole seconds, rounded up: a page of many orders is compressed much better without fractions.
        wall = ceil((self._clock.now() + timedelta(seconds=seconds)).timestamp())
        earlier = uncertain_order_rules.earlier_requests(opened)
        await self._journal.record(JournalEntry(opened.order, wall, ceil(seconds), is_being_deleted, earlier))
        self._open.put(uid, replace(opened, is_recorded=True, is_being_deleted=is_being_deleted))
        return deadline

    def _drop_unrecorded(self, uid: str) -> None:
        """Drop an order for which the driver was never called: the next attempt builds it from the current objects."""
        if not self._open[uid].is_recorded:
            self._open.remove(uid)

    async def _call_failed(
        self, error: CsiError, before: OpenOrder, uid: str, *, began: float, deadline: float
    ) -> Outcome:
        """Record what the call leaves of the order, which was `before` when it began, and report the error."""
        opened = self._open[uid]
        if may_still_run(error):
            self._open.change(uid, may_run_until=max(opened.may_run_until, deadline))
            return self._report(uid, self._sentence(opened.order, error))
        if error.delivery is Delivery.UNSENT:
            self._drop_unsent(before, uid)
            return self._report(uid, self._sentence(opened.order, error))
        claim, ended = await self._claims.current(uid), began >= opened.may_run_until
        can_rebuild = is_rebuildable(claim, self._settings.driver)
        remaining = uncertain_order_rules.after_final_error(
            before, opened, error.code, have_earlier_calls_ended=ended, is_rebuildable=can_rebuild
        )
        if remaining is not None and not ended:
            self._open.put(uid, remaining)
            self._report(uid, self._sentence(opened.order, error))
            return RetryAfter(max(0.0, opened.may_run_until - self._clock.elapsed()))
        if remaining is None:
            self._close(uid)
        else:
            self._open.put(uid, remaining)
            if claim is None or not is_wanted(claim, opened.order):
                return self._not_undone(error, opened.order, uid)
        return Done() if claim is None else await self._refused(error, opened.order, claim)

    def _drop_unsent(self, before: OpenOrder, uid: str) -> None:
        """Undo what was recorded for a call that the driver did not get."""
        if before.uncertain:
            self._open.change(uid, uncertain=before.uncertain)
        else:
            self._close(uid)

    def _not_undone(self, error: CsiError, order: VolumeOrder, uid: str) -> Outcome:
        """Log that a volume may be left which no claim waits for; return the outcome that retries the call."""
        name = order.volume_name
        reason = f"no claim waits for the volume {name}, but the driver may have it: its id is needed to delete it"
        return self._failed(uid, f"{reason}; {rpc_error(error)}", slowly=isinstance(error, InvalidArgument))

    async def _refused(self, error: CsiError, order: VolumeOrder, claim: ApiObject) -> Outcome:
        """Report a final error of the call for a claim that exists."""
        uid, sentence = objects.uid(claim), self._sentence(order, error)
        if isinstance(error, ResourceExhausted) and order.selected_node and HAS_TOPOLOGY in self._capabilities:
            reported = self._report(uid, sentence)
            # Keep a node that the scheduler selected during the call: it was not tried yet.
            if state.selected_node(claim) != order.selected_node:
                return RetryAfter(0.0)
            return await self._return_to_scheduler(claim, reported)
        if isinstance(error, InvalidArgument):
            prefix = "Volume provisioning failed with infeasible error. Retries will be delayed. "
            return self._report(uid, prefix + sentence, slowly=True)
        return self._report(uid, sentence)

    def _sentence(self, order: VolumeOrder, error: CsiError) -> str:
        return f'failed to provision volume with StorageClass "{order.storage.name}": {rpc_error(error)}'

    def _fault(self, order: VolumeOrder, volume: csi_pb2.Volume) -> UnusableVolume | None:
        if (owner := self._saving.owner_of_handle(volume.volume_id, order.volume_name)) is not None:
            # Leave the id out, so that the volume is never deleted: it has another claim's data.
            reason = f"the driver returned the volume {shown_id(volume.volume_id)}, which already belongs to {owner}"
            return UnusableVolume(reason, retry_slowly=True)
        return fault_of_volume(order, volume)

    # ---- undoing -------------------------------------------------------------------------------------------------

    async def _delete_again(
        self, order: VolumeOrder, volume_id: str, fault: UnusableVolume | None, uid: str
    ) -> Outcome | None:
        if (owner := self._saving.owner_of_handle(volume_id, order.volume_name)) is not None:
            reason = f"the volume {shown_id(volume_id)} now belongs to {owner}"
            self._open.change(uid, fault=UnusableVolume(reason, retry_slowly=True))
            return None
        if await self._saving.has_saved(order, volume_id):
            # An earlier process created this object, and our cache lacks it yet: its claim may already use the volume.
            self._open.change(uid, is_saved=True)
            return None
        # Record the deletion before the call: a process that resumes the order must not call CreateVolume while this
        # DeleteVolume may still run, because it would get the volume that is being deleted.
        deadline = await self._record(self._open[uid], uid, is_being_deleted=True)
        try:
            await self._calls.delete(volume_id, order.secret_for(SecretUse.PROVISION.value), deadline)
        except CsiError as error:
            if may_still_run(error):
                self._open.change(uid, may_run_until=deadline)
            reason = f"the volume {shown_id(volume_id)} cannot be deleted: {rpc_error(error)}"
            return self._report(uid, reason if fault is None else f"{fault.reason}; {reason}")
        self._close(uid)
        if fault is None:
            return Done()
        return self._report(uid, fault.reason, slowly=fault.retry_slowly)

    def _close(self, uid: str) -> None:
        """Forget the order; its outcome is known."""
        opened = self._open.remove(uid)
        self._journal.forget(opened.order.volume_name)
        self._metrics.end(uid)
        if self._claims.cached(uid) is None:
            self.forget_claim(uid)

    async def _return_to_scheduler(self, claim: ApiObject, reported: Outcome) -> Outcome:
        """Return the claim to the scheduler; retry it as `reported` if no scheduler selects a node for it."""
        # An Immediate claim may carry the alpha key: that names a node, but nobody selects another one.
        if not state.is_marked_for_late_provisioning(claim):
            return reported
        await self._claims.return_to_scheduler(claim)
        return Done()

    def _report(self, uid: str, sentence: str, *, slowly: bool = False) -> Outcome:
        """Record the failure as an event of the claim, if it exists; return the outcome that retries it."""
        if (claim := self._claims.cached(uid)) is not None:
            self._reports.not_provisioned(claim, sentence)
        return self._failed(uid, sentence, slowly=slowly)

    def _failed(self, uid: str, sentence: str, *, slowly: bool) -> Outcome:
        printable = printable_sentence(sentence)
        if not slowly:
            return Failed(NotProvisioned(printable))
        self._log.warning("provisioning failed; retrying slowly", claim=uid, error=printable)
        return RetryAfter(self._settings.slow_retry)
