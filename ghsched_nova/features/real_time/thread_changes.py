# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Scheduling classes and CPUs of guests' threads, for ``ghsched-host``."""

from pathlib import Path

from ghsched_nova.features.real_time import engine
from ghsched_nova.features.real_time import host_scheduling
from ghsched_nova.host import compute_hooks


def plan_scheduling_changes(guests: compute_hooks.HostGuests) -> engine.Report:
    """Return the scheduling changes of threads that guests' policies require.
    """
    return engine.plan_thread_changes(
        host_scheduling.list_guest_thread_scheduling(guests.running),
        Path(guests.section.libvirt_run_path))


def set_thread_scheduling(guests: compute_hooks.HostGuests) -> engine.Report:
    """Set the scheduling classes and CPUs of guests' threads, as root."""
    # The import is slow, and a plan does not need it.
    from ghsched_nova.features.real_time import privileged

    return engine.reconcile_threads(
        host_scheduling.list_guest_thread_scheduling(guests.running),
        Path(guests.section.libvirt_run_path),
        privileged.apply_thread_change_as_root)


PART = compute_hooks.HostPart(plan_scheduling_changes, set_thread_scheduling)
