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
"""Part of a guest's policy that opens a channel to its host (pure)."""

from dataclasses import dataclass

from ghsched_placement.flavor import keys
from ghsched_placement.flavor.parts import Feature
from ghsched_placement.flavor.parts import FlavorValues
from ghsched_placement.flavor.parts import PolicyPart

GUEST_CHANNEL = keys.Key(
    name='guest_channel', title='Channel between guest and host',
    kind='enum', per_node=False, default_text=keys.NONE,
    choices=(keys.NONE, 'read', 'write'),
    summary='Whether the guest has a channel on which the host tells it its '
            'policy and what becomes of it.',
    details='A virtio-serial port, org.openstack.ghsched.0. With read the '
            'host writes one line of JSON when the guest starts, when its '
            'policy or what is enforced of it changes, and when it was moved. '
            'With write the guest may also tell how much it stalls, and move '
            'its vCPUs between its own classes (ghsched:vcpu_classes).')

CAPABILITY = 'GUEST_CHANNEL'


@dataclass(frozen=True)
class ChannelPart(PolicyPart):
    """Channel through which a guest and its host exchange messages.

    :param mode: ``read`` if the guest reads changes of its policy, ``write``
        if it also reports its stalls to the host, ``none`` without a channel.
    """

    mode: str = keys.NONE

    @property
    def is_open(self) -> bool:
        """Whether the guest has the channel."""
        return self.mode != keys.NONE

    def get_needed_capabilities(self) -> frozenset[str]:
        return frozenset({CAPABILITY} if self.is_open else ())


def parse_channel_part(flavor: FlavorValues) -> ChannelPart:
    """Parse from a flavor whether its guests have the channel."""
    return ChannelPart(str(flavor.values.get(
        GUEST_CHANNEL.name, keys.NONE)))


FEATURE = Feature('guest_channel', (GUEST_CHANNEL,), ChannelPart,
                  parse_channel_part,
                  capabilities={CAPABILITY: GUEST_CHANNEL},
                  are_on_any_host=True)
