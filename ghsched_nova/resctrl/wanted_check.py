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

"""Check of the desired state that the privileged helper is given (pure)."""

import re

from ghsched_nova.resctrl.cache_facts import Cache
from ghsched_nova.resctrl import differences
from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import naming
from ghsched_placement.flavor import vcpu_classes

_LINE = re.compile(r'[A-Z][A-Z0-9_]{0,31}')


def check_desired_state(wanted: model.Wanted) -> None:
    """Refuse a malformed desired state of resctrl.

    The privileged helper checks the state before it makes changes as root.

    :raises ValueError: with the reason.
    """
    for guest in wanted.guests:
        _check_guest(guest)
    _check_cache(wanted.cache)
    for values in (wanted.others, wanted.bounded):
        _check_values({line: {0: value} for line, value in values.items()})
    _check_values({line: dict(enumerate(written.values()))
                   for line, written in wanted.writes.items()})
    for domain in (*wanted.domains, *(guest.domain
                                      for guest in wanted.guests)):
        if not naming.is_uuid(domain.uuid):
            raise ValueError(f'{domain.uuid!r} is not a UUID')
        if '/' in domain.name or '\0' in domain.name:
            raise ValueError(f'{domain.name!r} is not the name of a domain')
        if domain.id < 0:
            raise ValueError(f'{domain.id} is not a domain id')
    for name in wanted.removable:
        if not naming.is_guest_group(name):
            raise ValueError(f'{name!r} is not the name of a group of '
                             'guests')


def _check_guest(guest: model.Guest) -> None:
    if guest.maker not in ('ghsched', 'libvirt', 'libvirt-process'):
        raise ValueError(f'{guest.maker!r} is not a maker of control groups')
    if not guest.named_vcpus or min(guest.vcpus | guest.named_vcpus) < 0:
        raise ValueError(f'guest {guest.domain.uuid} has no vCPU')
    if guest.devices and min(guest.devices) < 0:
        raise ValueError(f'{min(guest.devices)} is not an IOMMU group')
    if guest.shared and not naming.is_shared_group(guest.shared):
        raise ValueError(f'{guest.shared!r} is not the name of a shared group')
    if guest.vcpu_class and not vcpu_classes.is_class_name(guest.vcpu_class):
        raise ValueError(f'{guest.vcpu_class!r} is not the name of a class')
    _check_values(guest.desired)
    _check_values({'L3': dict(guest.ways)})


def _check_cache(cache: Cache | None) -> None:
    if cache is None:
        return
    _check_values({line: {} for line in cache.lines})
    if (min(cache.mask, cache.region, cache.least) < 1
            or cache.region & ~cache.mask or min(cache.domains) < 0
            or any(taken & ~cache.mask
                   for taken in cache.exclusive.values())):
        raise ValueError(f'{cache} is not a cache')


def _check_values(desired: differences.Desired) -> None:
    for line, values in desired.items():
        if not _LINE.fullmatch(line):
            raise ValueError(f'{line!r} is not a line of a schemata')
        for domain, value in values.items():
            if domain < 0 or not 0 <= value < 2 ** 32:
                raise ValueError(f'{line}:{domain}={value} is not a value of '
                                 'a schemata')
