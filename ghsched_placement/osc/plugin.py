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

"""Entry points that python-openstackclient calls in a plug-in."""

import argparse
from typing import Any

from ghsched_placement.osc import client
from ghsched_placement.osc import http

API_NAME = 'ghsched'
API_VERSION_OPTION = 'os_ghsched_api_version'
DEFAULT_API_VERSION = '1'
#: The commands are the entry points of ``openstack.ghsched.v1``.
API_VERSIONS = ('1',)


def make_client(instance: Any) -> client.Client:
    """Return the client that ghsched's OpenStackClient commands use.

    OpenStackClient calls this function to create the plug-in's client.

    :param instance: OpenStackClient's ClientManager, which has the connection.
    """
    http.set_session_timeout(instance.sdk_connection)
    return client.Client(instance.sdk_connection)


def build_option_parser(
        parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Return OpenStackClient's option parser; ghsched adds no options."""
    return parser
