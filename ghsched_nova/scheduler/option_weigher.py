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


"""Base class of ghsched's weighers."""

from typing import Any

from nova.scheduler import utils
from nova.scheduler import weights
from oslo_log import log as logging

from ghsched_nova.nova_seams import shared

LOG = logging.getLogger(__name__)


class OptionWeigher(weights.BaseHostWeigher):
    """Base class of ghsched's weighers.

    If the score of a host cannot be computed, the weigher logs the error and
    uses a fixed score. It does not let the request fail.

    :cvar option: option in the section ``[ghsched]`` with the multiplier of
        the weigher.
    :cvar measure: name of what the weigher measures, for the log.
    :cvar unreadable: score of a host for which no score can be computed.
    """

    option: str
    measure: str
    unreadable: float

    def weight_multiplier(self, host_state: Any) -> float:
        """Return the multiplier of this weigher's score of a host.

        Metadata of the host's aggregates overrides the configuration option.
        """
        return float(utils.get_weight_multiplier(
            host_state, self.option,
            getattr(shared.config().ghsched, self.option)))

    def compute_score(self, host_state: Any,
                      spec: shared.RequestSpec) -> float:
        """Return this weigher's score of a host for a request.

        The method may raise any exception if the score cannot be computed.
        """
        raise NotImplementedError

    def _weigh_object(self, host_state: Any,
                      spec: shared.RequestSpec) -> float:
        """Return the score of a host for a request; never raise.

        A host whose score cannot be computed gets a fixed score. If a weigher
        raised an error, Nova would refuse the whole request.
        """
        try:
            return self.compute_score(host_state, spec)
        except Exception as error:
            LOG.warning('ghsched: host %(host)s: cannot compute the weigher '
                        'score for %(measure)s; using the score %(score)s: '
                        '%(error)r',
                        {'host': getattr(host_state, 'host', host_state),
                         'measure': self.measure,
                         'score': self.unreadable, 'error': error})
            return self.unreadable
