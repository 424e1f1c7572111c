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

"""Options of tempest.conf for tests of ghsched."""

from oslo_config import cfg

service_option = cfg.BoolOpt(
    'ghsched', default=False,
    help='Whether the compute services of the cloud run ghsched.')

group = cfg.OptGroup('ghsched', title='Memory bandwidth and devices of guests')

options = [
    cfg.StrOpt(
        'host_command', default='',
        help='A command prefix that runs the command after it on the compute '
             'host as root, for example "ssh root@compute1". The words are '
             'split as a shell does; no shell is involved. {host} in it is '
             'replaced with the name of the compute service that a guest is '
             'on. While it is empty, tests that look at the host are '
             'skipped.'),
    cfg.ListOpt(
        'capabilities', default=[],
        help='Capabilities of the hosts of the cloud: each trait '
             'CUSTOM_GHSCHED_* of Placement without this prefix, and each '
             'resource class of ghsched without CUSTOM_. Tests that need '
             'others are skipped, and one test compares the list with '
             'Placement.'),
    cfg.StrOpt(
        'cli_dir', default='',
        help='The directory of the program openstack in an environment with '
             'ghsched and python-openstackclient. While it is empty, the test '
             'that audits the cloud is skipped.'),
    cfg.BoolOpt(
        'dedicated_cpus', default=False,
        help='Whether each host has CPUs in [compute]cpu_dedicated_set and '
             'others in cpu_shared_set. Only tests of dedicated CPUs can run '
             'on hosts of two CPUs then.'),
    cfg.BoolOpt(
        'live_change', default=False,
        help="Whether nova-api has the filter of ghsched for changes of "
             "servers that run, in its api-paste.ini."),
    cfg.StrOpt(
        'libvirt_uri', default='qemu:///system',
        help='The libvirt connection that nova-compute uses on its host.'),
    cfg.StrOpt(
        'resctrl_path', default='/sys/fs/resctrl',
        help='Where the resctrl file system is mounted on the host.'),
    cfg.IntOpt(
        'flavor_ram', default=128, min=1,
        help='Memory of a test guest, in MiB.'),
    cfg.IntOpt(
        'flavor_disk', default=1, min=0,
        help='Root disk of a test guest, in GiB.'),
    cfg.IntOpt(
        'max_guests', default=8, min=1,
        help='The most guests that a test may boot. The test that fills the '
             'cloud is skipped when it would need more.'),
    cfg.IntOpt(
        'console_timeout', default=0, min=0,
        help='Seconds until the guest must have printed what it sees. The '
             'image must print "GUEST-NUMA online=NODES", lines "GUEST-NODE '
             'nodeN distance=NUMBERS" and "GUEST-CHANNEL JSON" for what comes '
             'on the channel of ghsched:guest_channel, a line "GUEST-PCI '
             'ADDRESS VENDOR:DEVICE numa_node=N" for each PCI device and then '
             '"GUEST-READY"; later it must print "GUEST-PCI-ADDED" with the '
             'same words, or "GUEST-PCI-REMOVED ADDRESS". With 0 the guest is '
             'not asked.'),
    cfg.StrOpt(
        'vf_alias', default='',
        help='The alias ([pci]alias of Nova) of virtual functions that a host '
             'of the cloud has on two NUMA nodes or more. While it is empty, '
             'all tests of virtual functions are skipped.'),
    cfg.StrOpt(
        'vf_image_ref', default='',
        help='The image of guests with virtual functions, [compute]image_ref '
             'by default. Its machine type must be q35 or virt.'),
    cfg.StrOpt(
        'vf_network', default='',
        help='A network of which ports with vnic_type=direct can be made. It '
             'must be shared. While it is empty, the tests that attach a port '
             'are skipped.'),
    cfg.IntOpt(
        'vf_attach_timeout', default=300, min=1,
        help='Seconds until a port is attached to a guest, or detached.'),
]
