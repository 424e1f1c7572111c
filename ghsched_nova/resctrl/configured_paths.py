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

"""Check of paths that the privileged helper is given."""

from pathlib import Path

from oslo_config import cfg

from ghsched_nova.base import kernel_files
from ghsched_nova.resctrl import fs


def check_root(root: str) -> None:
    """Refuse a resctrl mount point other than the configured one.

    The privileged helper checks its arguments, as it runs as root.

    :raises GroupError: with the reason.
    """
    check_path('resctrl_path', root)
    found = kernel_files.get_file_system_type(root)
    if found not in cfg.CONF.ghsched.resctrl_magic:
        raise fs.GroupError(
            f'is not on a resctrl file system (type {found:#x}); is resctrl '
            'still mounted?', root)


def check_path(option: str, requested: str) -> None:
    """Refuse a path other than the configured one.

    :raises GroupError: with the reason.
    """
    configured = cfg.CONF.ghsched[option]
    # The caller has made paths of its options, without a slash at the end.
    if requested != str(Path(configured)):
        raise fs.GroupError(
            f'[ghsched]{option} is {configured} in the configuration of the '
            'privileged helper; does it read the same files as nova-compute?',
            requested)
