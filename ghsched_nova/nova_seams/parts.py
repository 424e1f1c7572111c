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

"""Parts of ghsched that are off because the installed Nova differs.

A seam that does not match switches off as little as possible. nova-api and
nova-scheduler start, and refuse the flavor keys that need what is off.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping

from nova import version
from oslo_log import log as logging

from ghsched_nova.nova_seams import registry
from ghsched_nova.nova_seams import signatures

LOG = logging.getLogger(__name__)

_VFS_PREFIX = 'ghsched:vfs'
_ALL_PREFIX = 'ghsched:'

#: Prefix of the flavor keys that need a part, by service and part. Other parts
#: hold no promise of a flavor.
REFUSED_KEYS: Mapping[tuple[str, str], str] = {
    (registry.API, ''): _ALL_PREFIX,
    (registry.API, registry.LIMITS): _ALL_PREFIX,
    (registry.API, registry.VFS): _VFS_PREFIX,
    (registry.SCHEDULER, ''): _ALL_PREFIX,
    (registry.SCHEDULER, registry.VFS): _ALL_PREFIX}

#: Reasons why parts are off in this process, by service and part.
OFF: dict[tuple[str, str], str] = {}


def find_incompatible_parts(process: str) -> dict[str, str]:
    """Return the parts of ghsched that cannot work with the installed Nova.

    :param process: name of the service.
    :returns: mapping of part to a sentence with the functions of Nova that
        differ. The empty part stands for all that ghsched does in the service.
    """
    differ: dict[str, list[str]] = {}
    for name, seam in sorted(registry.SEAMS.items()):
        users = [user for user in seam.users
                 if not user.startswith('ghsched_nova.nova_fixes.')]
        found = (signatures.list_mismatches([name])
                 if users and process in seam.processes else ())
        for part in sorted(part for service, part in seam.parts
                           if found and service == process):
            differ.setdefault(part, []).extend(map(str, found))
    return {part: (
        (f'{process} does not start' if process == registry.COMPUTE
         else f'{part or "ghsched"} is off in {process}')
        + f', because the installed Nova {version.version_string()} differs: '
        + '; '.join(functions)) for part, functions in differ.items()}


def switch_off_parts(process: str,
                     unneeded: Collection[str] = ()) -> dict[str, str]:
    """Switch off, and log, the parts of ghsched that this Nova cannot serve.

    A part is a set of features that need the same functions of Nova. A further
    call adds the parts of modules that were loaded since then.

    :param process: name of the service.
    :param unneeded: parts without which no flavor loses anything here.
    :returns: reason by part that cannot work, the unneeded ones included.
    """
    found = find_incompatible_parts(process)
    for part, reason in found.items():
        if part not in unneeded and OFF.get((process, part)) != reason:
            OFF[process, part] = reason
            LOG.error('ghsched: %(reason)s. Install a release of ghsched that '
                      'supports this Nova', {'reason': reason})
    return found


def is_service_off(process: str) -> bool:
    """Return whether a service can only refuse flavors with ghsched keys.

    The installed Nova then differs in functions that ghsched needs there.
    """
    return any(REFUSED_KEYS.get((service, part)) == _ALL_PREFIX
               for service, part in OFF
               if service == process and part != registry.LIMITS)


def find_refusal(process: str, extra_specs: Iterable[str]) -> str:
    """Return why a service refuses a flavor with some extra specs.

    :param extra_specs: names of the extra specs.
    :returns: key and reason; empty if no part that is off is needed.
    """
    for key in extra_specs:
        for (service, part), reason in OFF.items():
            prefix = REFUSED_KEYS.get((service, part))
            if service == process and prefix and key.startswith(prefix):
                return f'{key} cannot be offered: {reason}'
    return ''
