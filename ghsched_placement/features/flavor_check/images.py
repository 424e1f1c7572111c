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

"""Extra specs that image properties add to those of a flavor (pure).

A copy of the rules of nova.virt.hardware for image properties on NUMA nodes
and CPUs, for commands that run without Nova.
"""

from collections.abc import Mapping
import re

#: Properties that stand for the extra spec ``hw:...`` of the same name.
_SAME = re.compile(r'hw_(numa_nodes|numa_cpus\.[0-9]+|numa_mem\.[0-9]+|'
                   r'cpu_policy|cpu_thread_policy|mem_page_size)')
_TRAIT = re.compile(r'trait:.+')

#: Machine types with PCI Express, which the NUMA node of a device needs.
_EXPRESS = re.compile(r'(pc-)?q35.*|virt.*')

#: Pages that an image may choose among.
_OPEN_PAGES = ('any', 'large')


class ImageError(ValueError):
    """Raised for an image property that Nova does not allow with a flavor."""


def merge_image_properties(extra_specs: Mapping[str, str],
                           properties: Mapping[str, str]) -> dict[str, str]:
    """Merge the properties of an image into a flavor's extra specs.

    As in Nova, an image may set some extra specs, unless the flavor forbids
    it.

    :param properties: image properties, such as ``hw_numa_nodes``.
    :returns: the merged extra specs.
    :raises ImageError: when the image sets what the flavor does not allow.
    """
    merged = dict(extra_specs)
    for name, value in sorted(properties.items()):
        if _TRAIT.fullmatch(name):
            merged.setdefault(name, value)
        elif _SAME.fullmatch(name):
            key = 'hw:' + name.removeprefix('hw_')
            merged[key] = _merge_image_value(key, name, value, extra_specs)
    _check_machine_type(extra_specs, properties)
    return merged


def _merge_image_value(key: str, name: str, value: str,
                       extra_specs: Mapping[str, str]) -> str:
    """Return the value of an extra spec after merging an image property.

    :param key: name of the extra spec.
    :param name: name of the image property.
    :param value: value of the image property.
    :raises ImageError: when Nova does not allow the image to set it.
    """
    of_flavor = extra_specs.get(key)
    if name == 'hw_mem_page_size':
        if of_flavor not in _OPEN_PAGES:
            raise ImageError(f'{name}: the flavor must set hw:mem_page_size='
                             'any or large, or the image may choose none')
        return value
    if not of_flavor:
        return value
    if name.startswith('hw_numa_'):
        raise ImageError(f'{name}: the flavor already sets {key}')
    if name == 'hw_cpu_policy':
        if value == 'dedicated' and of_flavor != 'dedicated':
            raise ImageError(f'{name}: dedicated is not allowed, because '
                             f'the flavor sets {key}={of_flavor}')
    return of_flavor


def _check_machine_type(extra_specs: Mapping[str, str],
                        properties: Mapping[str, str]) -> None:
    machine = properties.get('hw_machine_type')
    if (machine and not _EXPRESS.fullmatch(machine)
            and extra_specs.get('ghsched:device_numa') == 'required'):
        raise ImageError(
            f'hw_machine_type: {machine} has no PCI Express, which '
            'ghsched:device_numa=required needs; use q35 or virt')
