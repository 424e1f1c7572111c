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

"""``ghsched-exporter --cloud``: metrics of a cloud for Prometheus.

A thread of its own reads the cloud; a scrape is answered from memory.
"""

import argparse
import logging
import threading
import time
from typing import TYPE_CHECKING

from ghsched_nova.features.exporter import cloud_metrics
from ghsched_nova.features.planner import planner_inputs
from ghsched_placement.base import decimals

if TYPE_CHECKING:
    from ghsched_placement.features.exporter import cloud_cache

LOG = logging.getLogger(__name__)

#: Seconds between two refreshes.
INTERVAL_S = 300
LEAST_INTERVAL_S = 10
#: Seconds until the next refresh while hosts wait to be read.
_BACKLOG_PAUSE_S = 5.0


def add_cloud_export_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for exporting the metrics of a whole cloud to a parser.
    """
    group = parser.add_argument_group('metrics of a cloud')
    group.add_argument(
        '--cloud', metavar='NAME',
        help='export metrics of this cloud of clouds.yaml (or "envvars") '
             'instead of those of this host; the cloud is only read')
    group.add_argument(
        '--flavor', metavar='NAME[=N]', action='append', default=[],
        help='count how many more guests of this flavor fit; N is the number '
             'that should fit (default: 1; repeat for several)')
    group.add_argument(
        '--vf-class', metavar='ALIAS=CLASS', action='append', default=[],
        help='resource class in Placement of the VFs of a [pci]alias (repeat '
             'for several; not needed if all VFs of the cloud have one class)')
    group.add_argument(
        '--accounting', choices=('min', 'max'), default='min',
        help='value of [ghsched]bandwidth_accounting (default: min)')
    group.add_argument(
        '--interval', type=_parse_refresh_interval, default=INTERVAL_S,
        metavar='SECONDS',
        help='seconds between two reads of the cloud (default: %(default)s)')


def _parse_refresh_interval(text: str) -> int:
    """Parse a command-line argument as seconds between two reads of the cloud.
    """
    seconds = decimals.parse_decimal(text)
    if seconds is None or not LEAST_INTERVAL_S <= seconds <= 86400:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not from {LEAST_INTERVAL_S} to 86400')
    return seconds


class CloudReader:
    """Reads the state of a cloud periodically, in a thread of its own.

    :param cache: cache of the last known state of the cloud.
    :param connection: connection of the cache to the services, which counts
        the requests.
    :param interval: seconds between two reads.
    """

    def __init__(self, cache: 'cloud_cache.CloudCache',
                 connection: 'cloud_cache.ReadOnlyConnection',
                 interval: float) -> None:
        self._cache = cache
        self._connection = connection
        self._interval = interval
        self._errors = 0

    def get_cloud_reading(self) -> cloud_metrics.CloudReading:
        """Return the last known state of the cloud, without reading it again.
        """
        cloud = self._cache.cloud
        return cloud_metrics.CloudReading(
            cloud, None if cloud.read_at is None
            else time.monotonic() - cloud.read_at,
            self._connection.request_counts, self._errors)

    def start_refreshing(self) -> None:
        """Start a thread that reads the state of the cloud periodically."""
        threading.Thread(target=self._run, daemon=True).start()

    def refresh_cloud(self) -> float:
        """Read the state of the cloud from Placement and Nova.

        An error is logged and counted, and the last known state remains.

        :returns: seconds until the next read.
        """
        from ghsched_placement.features.exporter import cloud_cache

        try:
            self._cache.refresh()
        except Exception as error:
            # The thread must not end: nobody would start it again.
            LOG.warning('cannot read hosts and flavors from Placement and '
                        'Nova; exporting the previous metrics: %(error)s',
                        {'error': error},
                        exc_info=not isinstance(error, cloud_cache.ERRORS))
            self._errors += 1
            return self._interval
        return (min(_BACKLOG_PAUSE_S, self._interval)
                if self._cache.cloud.unread else self._interval)

    def _run(self) -> None:
        while True:
            time.sleep(self.refresh_cloud())


def make_cloud_reader(arguments: argparse.Namespace) -> CloudReader:
    """Return the reader of a cloud that command-line options describe.

    :raises PlannerError: if the cloud is unknown or a module is missing.
    :raises ArgumentTypeError: if an option is malformed.
    """
    connection = planner_inputs.connect_cloud(arguments.cloud)
    from ghsched_placement.features.exporter import cloud_cache
    from ghsched_placement.features.flavor_check import flavor_check as flavors

    cache, reading = cloud_cache.make_cloud_cache(
        connection,
        cloud_cache.CloudCacheSettings(
            tuple(map(cloud_cache.parse_watched_flavor, arguments.flavor)),
            arguments.accounting,
            tuple(map(flavors.parse_vf_class, arguments.vf_class))))
    return CloudReader(cache, reading, arguments.interval)
