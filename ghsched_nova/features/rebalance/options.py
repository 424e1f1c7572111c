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

"""Options of traffic between guests."""

from oslo_config import cfg

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        'affinity_source',
        help='Source of the traffic between guests of the host, by which '
             'rebalancing moves guests that exchange much data close to each '
             'other: the name of an entry point of the group '
             'ghsched.affinity_sources. conntrack reads the kernel\'s table '
             'of connections, which counts bytes with '
             'net.netfilter.nf_conntrack_acct=1. If unset, no traffic is '
             'measured; traffic of VFs never is. Used by nova-compute.'),
]
