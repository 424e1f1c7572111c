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


"""The PFs of a described host, and their providers in Placement (pure)."""

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
import uuid

import os_traits

from ghsched_placement.providers import names
from ghsched_placement.providers import tree

#: Traits of device providers, as in nova.compute.pci_placement_translator.
_TRAITS = frozenset({os_traits.COMPUTE_MANAGED_PCI_DEVICE,
                     os_traits.OWNER_NOVA})


@dataclass(frozen=True)
class HostPf:
    """SR-IOV physical function (PF) whose VFs guests may use.

    :param address: PCI address of the PF.
    :param node: host NUMA node of the PF.
    :param vfs: number of VFs of the PF.
    :param alias: name in Nova's [pci]alias by which flavors request the VFs.
    :param resource_class: resource class of the VFs in Placement.
    """

    address: str
    node: int
    vfs: int
    alias: str
    resource_class: str


def make_pf_providers(root: tree.WantedProvider,
                      pfs: Sequence[HostPf]) -> Iterator[tree.WantedProvider]:
    """Yield the Placement providers that Nova would create for a host's PFs.

    :param root: provider of the compute node, the parent of the providers.
    """
    for pf in pfs:
        name = f'{root.name}_{pf.address.upper()}'
        yield tree.WantedProvider(
            uuid=str(uuid.uuid5(uuid.UUID(root.uuid), name)), name=name,
            parent_uuid=names.make_numa_provider_uuid(root.uuid, pf.node),
            inventories={pf.resource_class: tree.make_inventory(pf.vfs)},
            traits=_TRAITS)
