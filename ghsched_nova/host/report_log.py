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

import logging

from ghsched_nova.resctrl import model
from ghsched_nova.resctrl import reconcile as reconciling

LOG = logging.getLogger(__name__)


class ProblemLog:
    """Log of problems that a reconciliation of resctrl cannot solve.

    A problem is logged again only after a reconciliation without it.
    """

    def __init__(self) -> None:
        self._unmeasured = self._overlaps = frozenset[model.PolicyProblem]()

    def log_new_problems(self, report: reconciling.ReconcileReport) -> None:
        """Log guests that cannot be measured, and L3 ways that overlap."""
        unmeasured = frozenset(report.unmeasured)
        for problem in sorted(unmeasured - self._unmeasured, key=str):
            LOG.warning('ghsched: cannot measure the memory bandwidth of '
                        'guest %(uuid)s; reporting no bandwidth use for this '
                        'guest: %(reason)s',
                        {'uuid': problem.guest, 'reason': problem.reason})
        overlaps = frozenset(report.overlaps)
        for problem in sorted(overlaps - self._overlaps, key=str):
            LOG.warning('ghsched: guest %(uuid)s: another control group uses '
                        'the L3 cache ways reserved for this guest '
                        '(%(reason)s); change the cache ways of the other '
                        'group or remove it',
                        {'uuid': problem.guest, 'reason': problem.reason})
        self._unmeasured, self._overlaps = unmeasured, overlaps


def log_actions(report: reconciling.ReconcileReport) -> None:
    """Log each change that a reconciliation of resctrl has made."""
    for action in report.actions:
        LOG.info('ghsched: changed the resctrl settings of this host '
                 '(%(action)s) because %(reason)s',
                 {'action': action, 'reason': action.reason})
