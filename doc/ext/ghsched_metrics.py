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

"""Sphinx extension: the metrics, from the table that the exporter uses.

``.. ghsched-metrics::`` becomes a table of
:data:`ghsched_nova.monitor.metrics.METRICS`, and
``.. ghsched-metrics:: MODULE`` one of the metrics of another module there.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import importlib
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from ghsched_nova.monitor import metrics


def table(described: Iterable[metrics.MetricDescription]) -> Iterator[str]:
    """Yield the lines of the table of some metrics."""
    yield from ('.. list-table::', '   :header-rows: 1', '',
                '   * - Metric', '     - Type', '     - Labels',
                '     - Meaning')
    for metric in described:
        labels = ', '.join(f'``{label}``' for label in metric.labels)
        yield f'   * - ``{metric.exported_name}``'
        yield f'     - {"counter" if metric.counter else "gauge"}'
        yield f'     - {labels}'
        yield f'     - {metric.text} {metric.details}'.rstrip()


class MetricsDirective(SphinxDirective):
    """All metrics, in the order of the table."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        module = importlib.import_module(
            'ghsched_nova.monitor.' + (self.arguments or ['metrics'])[0])
        source = str(module.__file__)
        self.env.note_dependency(source)
        found = nodes.container()
        self.state.nested_parse(
            StringList(list(table(module.METRICS)), source=source), 0, found)
        return found.children


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive('ghsched-metrics', MetricsDirective)
    return {'version': '1', 'parallel_read_safe': True,
            'parallel_write_safe': True}
