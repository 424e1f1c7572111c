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

"""Latency curves that are shipped with ghsched, all published."""

from pathlib import Path

from ghsched_placement.features.density.curve import LatencyCurve
from ghsched_placement.features.density import documents

DIRECTORY = Path(__file__).parent / 'curves'


def load_shipped_curve(name: str) -> LatencyCurve:
    """Load a memory latency curve that is shipped with ghsched.

    :param name: file name of the curve, without suffix.
    """
    return LatencyCurve.from_mapping(documents.load_yaml(
        str(DIRECTORY / f'{name}.yaml')))


def load_closest_curve(is_x86: bool) -> LatencyCurve:
    """Load the memory latency curve for hosts of a processor architecture.

    Arm processors get the curve of a Graviton3, and x86 processors that of a
    Skylake. Both curves are shipped with ghsched.
    """
    return load_shipped_curve('mess-skylake' if is_x86 else 'mess-graviton3')
