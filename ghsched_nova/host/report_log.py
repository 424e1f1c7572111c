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

"""Log lines about a reconciliation of resctrl."""

from collections.abc import Iterable
import logging

from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import reconcile as reconciling

LOG = logging.getLogger(__name__)


#: Warning about a guest whose bandwidth cannot be measured.
UNMEASURED = ('ghsched: cannot measure the memory bandwidth of guest '
              '%(uuid)s; reporting no bandwidth use for this guest: '
              '%(reason)s')

#: Warning about a guest whose reserved L3 cache ways another group uses.
OVERLAPPED = ('ghsched: guest %(uuid)s: another control group uses the L3 '
              'cache ways reserved for this guest (%(reason)s); change the '
              'cache ways of the other group or remove it')


def log_new_problems(text: str, problems: Iterable[model.PolicyProblem],
                     known: frozenset[model.PolicyProblem]
                     ) -> frozenset[model.PolicyProblem]:
    """Log a warning about each guest with a problem, once.

    :param text: the warning.
    :param known: problems that were logged before.
    :returns: all problems.
    """
    found = frozenset(problems)
    for problem in sorted(found - known, key=str):
        LOG.warning(text, {'uuid': problem.guest, 'reason': problem.reason})
    return found


def log_actions(report: reconciling.ReconcileReport) -> None:
    for action in report.actions:
        LOG.info('ghsched: changed the resctrl settings of this host '
                 '(%(action)s) because %(reason)s',
                 {'action': action, 'reason': action.reason})
