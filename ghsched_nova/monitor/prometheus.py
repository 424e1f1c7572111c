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


"""Descriptions of Prometheus metrics, and metrics made of them (pure)."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import core
from prometheus_client import registry


@dataclass(frozen=True)
class MetricDescription:
    """Description of a Prometheus metric: its name, help text and labels.

    :param name: name without the ``_total`` suffix of counters.
    :param text: help text, shown by Prometheus.
    :param counter: whether the metric is a counter; otherwise it is a gauge.
    :param details: more text for the manual.
    """

    name: str
    text: str
    labels: tuple[str, ...] = ()
    counter: bool = False
    details: str = ''

    @property
    def exported_name(self) -> str:
        """Name of this metric as Prometheus sees it.

        Names of counters end in ``_total``.
        """
        return self.name + '_total' if self.counter else self.name


@dataclass(frozen=True)
class FileMetrics:
    """Metrics of ``ghsched-exporter`` from a file of a service of Nova.

    :param option: option of the command that names the file, as an attribute.
    :param make_collector: function that makes the collector of the file.
    :param help: help of the option; empty if ``ghsched-top`` has it, too.
    """

    option: str
    make_collector: Callable[[Path], registry.Collector]
    help: str = ''


def make_described_metric(
    description: MetricDescription,
    samples: Iterable[tuple[Sequence[str], float]]
) -> core.Metric:
    """Return a Prometheus metric with a given description and samples.

    :param description: name, help and labels of the metric.
    :param samples: label values and value of each sample.
    """
    kind = (core.CounterMetricFamily if description.counter
            else core.GaugeMetricFamily)
    found: core.CounterMetricFamily | core.GaugeMetricFamily = kind(
        description.name, description.text, labels=description.labels)
    merged = {
        tuple(map(_escape_label, values)): number for values, number in samples
    }
    for values, number in merged.items():
        found.add_metric(values, number)
    return found


def _escape_label(label: str) -> str:
    """Return a metric label as valid UTF-8, with invalid bytes escaped."""
    return label.encode(errors='backslashreplace').decode()
