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

"""Document that puts a measurement beside the model and simulated memory."""

from collections.abc import Mapping
from collections.abc import Sequence

from ghsched_nova.lab.bench.document import Block
from ghsched_nova.lab.bench.document import Heading
from ghsched_nova.lab.bench.document import Paragraph
from ghsched_nova.lab.bench.document import Table
from ghsched_nova.lab.bench import model_figures
from ghsched_nova.lab.bench import report

_HEAD = ('Key', 'p99, measured', 'p99, model', 'p99, simulated memory',
         'Streams, measured', 'Streams, model', 'Streams, simulated memory',
         "Within the model's range")


def make_document(rows: Mapping[str, Sequence[model_figures.Row]]
                  ) -> list[Block]:
    """Return a document with a table for each measurement.

    :param rows: effects of the keys, by title of the measurement.
    """
    blocks: list[Block] = [
        Heading('Measurement, model and simulated memory', 1),
        Paragraph('p99 is relative to the server alone, the bandwidth of the '
                  'streams to that without a key. The figures of the model '
                  'and of simulated memory (DRAMsim3) are simulated.')]
    for title, effects in rows.items():
        inside = sum(row.is_in_range for row in effects)
        blocks += [Heading(title, 2), _table(effects), Paragraph(
            f'{inside} of {len(effects)} measured p99 latencies are within '
            'the range of the model.')]
    return blocks


def _table(rows: Sequence[model_figures.Row]) -> Table:
    return Table(_HEAD, tuple((
        row.key, report.figure(row.p99), _span(row.model_p99),
        _span(row.simulated_p99), report.figure(row.streams),
        _span(row.model_streams), _span(row.simulated_streams),
        'yes' if row.is_in_range else 'no') for row in rows))


def _span(span: model_figures.Span | None) -> str:
    return ' to '.join(map(report.figure, span)) if span else ''
