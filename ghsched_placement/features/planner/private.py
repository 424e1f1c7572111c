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

"""A Placement for the planner alone, in a child process."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import util
import json
import os
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any

from ghsched_placement.features.planner import client
from ghsched_placement.features.planner.client import PlannerError

_MISSING = ('the planner runs a Placement of its own, and the package '
            "openstack-placement is not installed; pip install 'ghsched[plan]'"
            ' brings it')


@dataclass(frozen=True)
class _Answer:
    status_code: int
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


class PrivatePlacement:
    """Placement service that runs only for the planner, with its own database.

    It runs Placement's own code on a database in memory, in a process of its
    own. It is used as a context manager, and as a
    :class:`ghsched_placement.features.planner.client.PlacementReader` that
    also writes.

    :raises PlannerError: if Placement is not installed, or if the process has
        ended.
    """

    def __enter__(self) -> 'PrivatePlacement':
        if util.find_spec('placement') is None:
            raise PlannerError(_MISSING)
        self._process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-m',
             'ghsched_placement.features.planner.wsgi'],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
            # The child has the same packages, wherever they come from.
            env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)})
        self._lock = threading.Lock()
        self._known: set[str] = set(client.get_json(self, '/traits')['traits'])
        self._known.update(
            entry['name'] for entry in client.get_json(
                self, '/resource_classes')['resource_classes'])
        return self

    def __exit__(self, kind: type[BaseException] | None,
                 error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        # All streams are closed, and the child ends with its standard input.
        self._process.communicate()

    def get(self, url: str, *, microversion: str) -> client.Response:
        return self._send('GET', url, None, microversion)

    def put(self, url: str, *, json: Any,
            microversion: str) -> client.Response:
        return self._send('PUT', url, json, microversion)

    def post(self, url: str, *, json: Any,
             microversion: str) -> client.Response:
        return self._send('POST', url, json, microversion)

    def replace_providers(self, providers: Sequence[Mapping[str,
                                                            Any]]) -> None:
        """Replace all resource providers in the planner's private Placement.

        The private Placement is a Placement service in a process of its own.
        Standard resource classes and traits that its release does not know are
        left out.
        """
        for provider in providers:
            self.create_classes_and_traits(
                provider['inventories'], provider['traits'])
        self._send('load', [
            {**provider,
             'inventories': {name: record for name, record
                             in provider['inventories'].items()
                             if name in self._known},
             'used': {name: used for name, used in provider['used'].items()
                      if name in self._known},
             'traits': sorted(self._known.intersection(provider['traits']))}
            for provider in providers])

    def create_classes_and_traits(
            self, classes: Iterable[str], traits: Iterable[str]) -> None:
        """Create custom resource classes and traits in the private Placement.
        """
        unknown = [('resource_classes', name) for name in classes]
        unknown += [('traits', name) for name in traits]
        for kind, name in unknown:
            if name.startswith('CUSTOM_') and name not in self._known:
                path = f'/{kind}/{name}'
                client.parse_response('PUT', path, self.put(
                    path, json=None, microversion=client.MICROVERSION))
                self._known.add(name)

    def _send(self, *asked: Any) -> client.Response:
        process = self._process
        assert process.stdin and process.stdout  # noqa: S101
        try:
            with self._lock:
                process.stdin.write(json.dumps(asked) + '\n')
                process.stdin.flush()
                line = process.stdout.readline()
        except BrokenPipeError:
            line = ''
        if not line:
            _, output = process.communicate()
            raise PlannerError('the planner\'s own Placement ended: '
                               + (output.strip().splitlines() or ['?'])[-1])
        return _Answer(*json.loads(line))
