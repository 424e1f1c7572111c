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


"""Groups that nobody needs, and those of other software (pure)."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Set
from dataclasses import replace
from itertools import chain

from ghsched_nova.resctrl import model
from ghsched_nova.resctrl.model import Domain
from ghsched_nova.resctrl.model import Group
from ghsched_nova.resctrl import naming


def index_domains_by_id(domains: Iterable[Domain]) -> dict[int, Domain]:
    return {domain.id: domain for domain in domains}


def is_foreign(path: str, running: Mapping[int, Domain]) -> bool:
    """Whether a resctrl group belongs to other software than nova-compute.

    A group of a running libvirt domain counts as foreign, too: nova-compute
    may not change it.

    :param path: path of the group.
    :param running: running libvirt domains by id.
    """
    name = naming.parse_group_name(path)
    return not name.is_ghsched and (
        name.machine is None or _is_of_running_domain(name, running))


def _is_of_running_domain(name: naming.GroupName,
                          running: Mapping[int, Domain]) -> bool:
    domain = running.get(name.machine[0]) if name.machine else None
    return domain is not None and name.is_of_domain(domain.id, domain.name)


def find_leaked_groups(actual: model.Actual, wanted: model.Wanted
                       ) -> dict[str, str]:
    """Return the resctrl groups to remove, each with the reason.

    A group of nova-compute or libvirt is removed if no guest needs it and no
    guest's threads are in it. If the host has no free group, it is also
    removed if the plan moves the threads to other groups, and so is a group of
    a vCPU class without limits: the kernel then moves the threads to the
    default group.
    """
    guest_tids = frozenset(chain.from_iterable(actual.threads.values()))
    uuids = {domain.uuid for domain in wanted.domains}
    # It is known which group these need; the others may need theirs.
    placed = {guest.domain.uuid for guest in wanted.guests}
    running = index_domains_by_id(wanted.domains)
    # A process whose domain is not known is that of a guest that starts.
    unknown = actual.processes - {domain.name for domain in wanted.domains}
    found = {}
    for name in (wanted.removable & actual.groups.keys()
                 ) - actual.members.keys():
        group = actual.groups[name]
        parsed = naming.parse_group_name(name)
        if actual.scarce or parsed.vcpu_class and parsed.uuid in placed:
            group = replace(group, tasks=group.tasks - guest_tids,
                            vcpu_threads=group.vcpu_threads - guest_tids)
        reason = (_explain_leaked_nova_group(parsed, group, uuids, placed)
                  or _explain_leaked_libvirt_group(parsed, group, running,
                                                   unknown))
        if reason:
            found[name] = reason
    return found


def _explain_leaked_nova_group(name: naming.GroupName, group: Group,
                               uuids: Set[str], placed: Set[str]) -> str:
    if name.path == naming.DEFAULT:
        # What is in it belongs to the kernel's own group then.
        return 'no guest uses it'
    if group.vcpu_threads or group.error:
        return ''
    if name.path == naming.PROBE:
        return 'a measurement was interrupted'
    if name.is_shared:
        return 'no guest shares it'
    uuid = name.uuid
    if uuid in placed or uuid in uuids and name.is_default_monitor:
        return f'guest {uuid} is in another group'
    return '' if uuid is None or uuid in uuids else f'no guest {uuid} runs'


def _explain_leaked_libvirt_group(name: naming.GroupName, group: Group,
                                  running: Mapping[int, Domain],
                                  unknown: Set[str]) -> str:
    if (name.machine is None or group.tasks or group.error
            or _is_of_running_domain(name, running)):
        return ''
    number, part = name.machine
    if any(naming.is_derived_from_domain_name(part, other)
           for other in unknown):
        return ''
    return f'libvirt left it: no domain {number} of this name runs'
