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

"""Checks of flavors whose vCPUs must have host CPUs of their own (pure)."""

from collections.abc import Mapping

from ghsched_placement.base.errors import PolicyError
from ghsched_placement.flavor.keys import Key

CPU_POLICY = 'hw:cpu_policy'
EMULATOR_POLICY = 'hw:emulator_threads_policy'


def is_emulator_apart(extra_specs: Mapping[str, str]) -> bool:
    """Whether QEMU's own threads run on other host CPUs than the vCPUs."""
    return extra_specs.get(EMULATOR_POLICY) in ('share', 'isolate')


def check_dedicated_cpus(key: Key, extra_specs: Mapping[str, str]) -> None:
    """Refuse a flavor whose vCPUs share their host CPUs with other threads.

    :param key: key of the flavor that needs CPUs that are not shared.
    :raises PolicyError: with the extra spec to set.
    """
    if extra_specs.get(CPU_POLICY) != 'dedicated':
        raise PolicyError(
            key.extra_spec, 'needs vCPUs with CPUs of their own; set '
                            f'{CPU_POLICY}=dedicated')
    if not is_emulator_apart(extra_specs):
        raise PolicyError(
            key.extra_spec, 'needs CPUs for QEMU itself, beside those of the '
                            f'vCPUs; set {EMULATOR_POLICY}=share or isolate')


def warn_of_shared_emulator(key: Key, value: str,
                            extra_specs: Mapping[str, str]) -> str:
    """Return a warning if some hosts run QEMU's threads on the vCPUs' CPUs.

    With ``hw:emulator_threads_policy=share`` the threads of QEMU are on the
    CPUs of ``[compute]cpu_shared_set``. On hosts without this option they are
    on those of the vCPUs.

    :param key: key of the flavor that forbids QEMU's threads there.
    :param value: value of the key, for the warning.
    :returns: empty if there is nothing to warn of.
    """
    if extra_specs.get(EMULATOR_POLICY) != 'share':
        return ''
    return (f'{key.extra_spec}={value} with {EMULATOR_POLICY}=share: hosts '
            'without [compute]cpu_shared_set refuse such a guest; set it '
            f'there, or set {EMULATOR_POLICY}=isolate')
