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

"""Interrupts of guests' passthrough devices, for ``ghsched-host``."""

from pathlib import Path

from ghsched_nova.features.interrupts import engine
from ghsched_nova.features.interrupts import interrupts
from ghsched_nova.features.interrupts import model
from ghsched_nova.host import compute_hooks

PROC = Path('/proc')


def plan_interrupt_moves(guests: compute_hooks.HostGuests) -> engine.Report:
    """Return the device interrupts to move to housekeeping CPUs; move none."""
    return _make_mover(guests).report_misplaced(guests.running)


def move_interrupts(guests: compute_hooks.HostGuests) -> engine.Report:
    """Move device interrupts to housekeeping CPUs, as root."""
    return _make_mover(guests).move_interrupts(guests.running)


def _make_mover(guests: compute_hooks.HostGuests) -> interrupts.InterruptMover:
    return interrupts.InterruptMover(
        guests.section, guests.dedicated_cpus, PROC,
        _set_interrupt_cpus_as_root)


def _set_interrupt_cpus_as_root(action: model.InterruptChange) -> str:
    """Set the CPUs that handle an interrupt, as root.

    :returns: error message; empty on success.
    """
    # The import is slow, and a plan does not need it.
    from ghsched_nova.features.interrupts import privileged

    return privileged.set_interrupt_cpus_as_root(action)


PART = compute_hooks.HostPart(plan_interrupt_moves, move_interrupts)
