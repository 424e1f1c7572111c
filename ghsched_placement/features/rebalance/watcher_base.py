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

"""Base classes of the goals and strategies of ghsched for Watcher."""

from collections.abc import Mapping
from typing import Any

from openstack import connection
from watcher.decision_engine.goal import base as goals
from watcher.decision_engine.goal.efficacy import specs
from watcher.decision_engine.strategy.strategies import base

from ghsched_placement.features.rebalance import move_plan
from ghsched_placement.osc import client as clients


class NamedPlugin:
    """Name and title that a Watcher goal and its strategy have in common.

    :cvar NAME: name in Watcher's API.
    :cvar TITLE: name that Watcher displays.
    """

    NAME = ''
    TITLE = ''

    @classmethod
    def get_name(cls) -> str:
        return cls.NAME

    @classmethod
    def get_display_name(cls) -> str:
        return cls.TITLE

    @classmethod
    def get_translatable_display_name(cls) -> str:
        return cls.TITLE


class GhschedGoal(NamedPlugin, goals.Goal):
    """Base class of the goals of OpenStack Watcher that ghsched adds."""

    @classmethod
    def get_efficacy_specification(cls) -> Any:
        return specs.Unclassified()


class GhschedStrategy(NamedPlugin, base.BaseStrategy):
    """Base class of the strategies of OpenStack Watcher that ghsched adds.

    They add live migrations to Watcher's action plan.
    """

    @classmethod
    def get_goal_name(cls) -> str:
        return cls.NAME

    @classmethod
    def get_config_opts(cls) -> list[Any]:
        """Return an empty list: this strategy has no configuration options."""
        return []

    def pre_execute(self) -> None:
        self._pre_execute()

    def post_execute(self) -> None:
        self.solution.model = self.compute_model

    def _make_client(self) -> clients.Client:
        """Return a client of Nova and Placement with Watcher's credentials.

        The client starts no threads, because Watcher may run under eventlet.
        """
        return clients.Client(
            connection.Connection(session=self.osc.session), workers=1)

    def _add_migration(self, move: move_plan.Move,
                       uuids: Mapping[str, str]) -> None:
        """Add a planned move to Watcher's action plan as a live migration.

        :param uuids: UUIDs of compute nodes, by name.
        """
        model = self.compute_model
        self.add_action_migrate(
            model.get_instance_by_uuid(move.guest), 'live',
            model.get_node_by_uuid(uuids[move.origin.host]),
            model.get_node_by_uuid(uuids[move.destination.host]))


def map_compute_node_uuids(client: clients.Client) -> dict[str, str]:
    """Return the UUID of each compute node in Nova, by hypervisor hostname."""
    return {str(node['hypervisor_hostname']): uuid
            for uuid, node in client.list_compute_nodes().items()}
