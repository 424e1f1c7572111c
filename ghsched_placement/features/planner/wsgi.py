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

"""A real Placement without a server: its WSGI application on SQLite.

This module alone imports ``placement``, and it runs in a process of its own
(see :mod:`ghsched_placement.features.planner.private`): Placement has one
database per process.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import json
import logging
import os
import select
import sys
import threading
from typing import Any
from typing import TextIO

from oslo_config import cfg
from oslo_policy import opts as policy_opts
from placement import conf as placement_conf
from placement.db.sqlalchemy import migration
from placement.db.sqlalchemy import models
from placement import db_api
from placement import deploy
import sqlalchemy
import webob

#: Settings with which Placement answers for many hosts at once, by section
#: and name.
SETTINGS: Mapping[tuple[str, str], Any] = {
    ('placement_database', 'sqlite_synchronous'): False,
    ('workarounds', 'optimize_for_wide_provider_trees'): True,
    ('placement', 'max_allocation_candidates'): 10000,
    ('placement', 'allocation_candidates_generation_strategy'):
        'breadth-first',
}

#: The consumer of what is in use when hosts are loaded.
_CONSUMER = '6e7c0d1e-65d5-5b55-9f0c-2a9f5f1f9d11'


class Application:
    """Placement's WSGI application on a database.

    :param connection: SQLAlchemy URL.
    :param settings: options of its configuration, by section and name.
    """

    def __init__(self, connection: str,
                 settings: Mapping[tuple[str, str], Any] | None = None,
                 ) -> None:
        config = cfg.ConfigOpts()
        placement_conf.register_opts(config)
        policy_opts.set_defaults(config, enforce_new_defaults=False)
        config.set_override('connection', connection, 'placement_database')
        config.set_override('auth_strategy', 'noauth2', 'api')
        for (group, name), value in (settings or {}).items():
            # Placement 13 and 14 have no [workarounds].
            with contextlib.suppress(cfg.NoSuchOptError,
                                     cfg.NoSuchGroupError):
                config.set_override(name, value, group)
        config([], default_config_files=[])
        db_api.configure(config)
        self._config = config
        self._app: Any = None

    def create_schema(self) -> None:
        """Create the tables of the Placement database."""
        migration.create_schema(db_api.get_placement_engine())

    def send_request(self, method: str, path: str, body: Any = None,
                     microversion: str = 'latest') -> tuple[int, str]:
        """Send a request to Placement's WSGI application.

        :returns: HTTP status and body of the response.
        """
        self._app = self._app or deploy.loadapp(self._config)
        request = webob.Request.blank(path, method=method, headers={
            'X-Auth-Token': 'admin',
            'OpenStack-API-Version': f'placement {microversion}'})
        if body is not None:
            request.content_type = 'application/json'
            request.body = json.dumps(body).encode()
        response = request.get_response(self._app)
        return response.status_int, response.text if response.body else ''

    def replace_providers(self, providers: Sequence[Mapping[str,
                                                            Any]]) -> None:
        """Replace all resource providers in the database of Placement.

        The providers are written directly to the database, because each would
        take 20 ms through the API. Their resource classes and traits must
        exist.

        :param providers: providers, parents before children, with ``uuid``,
            ``name``, ``parent`` (UUID or None), ``inventories`` as in the API,
            ``used`` (amount by resource class) and ``traits``.
        """
        engine = db_api.get_placement_engine()
        with engine.begin() as connection:
            classes = _read_ids(connection, models.ResourceClass)
            traits = _read_ids(connection, models.Trait)
            for model in (models.Allocation, models.Consumer,
                          models.Inventory, models.ResourceProviderTrait,
                          models.ResourceProvider):
                connection.execute(sqlalchemy.delete(model))
            for model, rows in _make_database_rows(providers, classes,
                                                   traits).items():
                if rows:
                    connection.execute(sqlalchemy.insert(model), rows)


def _read_ids(connection: Any, model: Any) -> dict[str, int]:
    return {name: number for number, name in connection.execute(
        sqlalchemy.select(model.id, model.name))}


def _make_database_rows(
        providers: Sequence[Mapping[str, Any]], classes: Mapping[str, int],
        traits: Mapping[str, int]) -> dict[Any, list[dict[str, Any]]]:
    """Convert resource providers to rows of Placement's database tables.

    :param classes: database ID of each resource class.
    :param traits: database ID of each trait.
    :returns: rows by database model.
    """
    number = {provider['uuid']: place
              for place, provider in enumerate(providers, start=1)}
    root: dict[str, int] = {}
    found: dict[Any, list[dict[str, Any]]] = {
        models.ResourceProvider: [], models.Inventory: [],
        models.ResourceProviderTrait: [], models.Allocation: []}
    for provider in providers:
        mine, parent = number[provider['uuid']], provider['parent']
        root[provider['uuid']] = root[parent] if parent else mine
        found[models.ResourceProvider].append({
            'id': mine, 'uuid': provider['uuid'], 'name': provider['name'],
            'generation': 0, 'root_provider_id': root[provider['uuid']],
            'parent_provider_id': number[parent] if parent else None})
        found[models.Inventory] += [
            {'resource_provider_id': mine, 'resource_class_id': classes[name],
             **record} for name, record in provider['inventories'].items()]
        found[models.ResourceProviderTrait] += [
            {'resource_provider_id': mine, 'trait_id': traits[name]}
            for name in provider['traits']]
        found[models.Allocation] += [
            {'resource_provider_id': mine, 'resource_class_id': classes[name],
             'consumer_id': _CONSUMER, 'used': used}
            for name, used in provider['used'].items() if used]
    return found


def serve_placement_requests(requests: Iterable[str], output: TextIO) -> None:
    """Answer the planner's requests to its private Placement, line by line.

    Each line is a JSON document: ``["load", providers]`` or ``[method, path,
    body, microversion]``. The response is ``[status, body]``.
    """
    application = Application('sqlite://', SETTINGS)
    application.create_schema()
    for line in requests:
        asked = json.loads(line)
        if asked[0] == 'load':
            application.replace_providers(asked[1])
            answer: tuple[int, str] = (204, '')
        else:
            answer = application.send_request(*asked)
        output.write(json.dumps(answer) + '\n')
        output.flush()


def exit_with_parent(descriptor: int) -> None:
    """End this process when the other end of a pipe is closed.

    A thread waits for that. So the process also ends while it computes the
    answer to a request, which can take minutes, after its parent was killed.

    :param descriptor: file descriptor of the pipe's end that is read here.
    """
    poll = select.poll()
    poll.register(descriptor, 0)        # a hang-up is always reported

    def wait_for_hang_up() -> None:
        poll.poll()
        os._exit(0)

    threading.Thread(target=wait_for_hang_up, daemon=True).start()


if __name__ == '__main__':
    logging.disable(logging.WARNING)
    exit_with_parent(sys.stdin.fileno())
    serve_placement_requests(sys.stdin, sys.stdout)
