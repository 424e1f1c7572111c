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

"""Find the guests whose policies the booted kernel cannot enforce.

For ``ghsched-status doctor --kernel``, after a reboot and before nova-compute
starts the guests again. Nothing is changed.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ghsched_nova.cmd import configured
from ghsched_nova.cmd import domains
from ghsched_nova.features.doctor import checks
from ghsched_nova.features.doctor import node
from ghsched_nova.features.doctor import preconditions
from ghsched_nova.guest import metadata
from ghsched_nova.host import desired
from ghsched_nova.host import host_facts
from ghsched_nova.host import passthrough
from ghsched_nova.host import readings
from ghsched_nova.resctrl import resctrl_host

_REMEDY = ('boot the kernel that this host had before, or move the server to '
           'another host with a cold migration')
_RESCTRL = 'do what the check of resctrl says; until then: ' + _REMEDY
_START = {
    'refuse': 'nova-compute does not start it',
    'start': 'nova-compute starts it without protection',
}


def check_guests_on_kernel(
    files: Sequence[str] | None, uri: str
) -> list[checks.Check]:
    """Check whether the kernel can enforce all guests' bandwidth policies.

    The guests are all libvirt domains with a policy, running or not.

    :param files: configuration files; None for those of nova-compute.
    :param uri: libvirt URI.
    :returns: result of a check of resctrl, and one of each guest.
    :raises oslo_config.cfg.Error: if a file cannot be read.
    :raises HostError: if libvirt does not answer.
    """
    section = configured.read_ghsched_options(files)
    facts = host_facts.HostFacts(section, readings.RoundingCache(
        Path(section.resctrl_path),
        configured.read_state_path(files) / readings.FILE, saves=False))
    found: resctrl_host.ResctrlHost | str
    try:
        found = facts.read_resctrl_host()
    except resctrl_host.ResctrlUnavailable as error:
        found = str(error)
    return list(
        make_kernel_checks(
            domains.list_all_domains(uri),
            found,
            section,
            node.list_unmet_preconditions(
                Path(section.resctrl_path), Path(section.sysfs_path)
            ),
        )
    )


def make_kernel_checks(
    defined: Sequence[desired.Running],
    host: resctrl_host.ResctrlHost | str,
    section: Any,
    missing: Sequence[preconditions.UnmetPrecondition] = (),
) -> Iterator[checks.Check]:
    """Yield the result of a check of resctrl, and of each guest with a policy.

    :param defined: all libvirt domains, running or not.
    :param host: resctrl features of the host; a reason if there are none.
    :param section: the ``[ghsched]`` section of the configuration.
    :param missing: preconditions of resctrl that the host does not meet.
    """
    if isinstance(host, str):
        yield checks.Check(
            'resctrl', 'error', '; '.join(
                dict.fromkeys((host, *(one.text for one in missing)))),
            '; '.join(one.remedy for one in missing)
            or 'see the page on control groups in the manual')
    else:
        yield checks.Check('resctrl', 'ok', host.dialect.title)
    group_sizes = desired.count_group_domains(defined)
    for running in sorted(defined, key=lambda one: one.domain.name):
        if desired.may_have_policy(running.xml):
            yield _check_guest_on_kernel(running, host, section, group_sizes)


def _check_guest_on_kernel(
    running: desired.Running,
    host: resctrl_host.ResctrlHost | str,
    section: Any,
    group_sizes: Mapping[str, int],
) -> checks.Check:
    """Check whether the kernel can enforce the bandwidth policy of a guest.

    :param host: resctrl features of the host; a reason if there are none.
    :param section: the ``[ghsched]`` section of the configuration.
    :param group_sizes: number of domains by shared control group.
    """
    title = f'{running.domain.name} ({running.domain.uuid})'
    try:
        if not (running.needs_control_group or running.needs_monitoring_group):
            return checks.Check(title, 'ok', 'needs no control group')
        if isinstance(host, str):
            return checks.Check(
                title,
                'error',
                _describe_unenforceable_policy(host, section),
                _RESCTRL,
            )
        for guest in desired.make_desired_groups(host, running, group_sizes):
            passthrough.add_iommu_groups(guest, running, host, section)
    except metadata.MetadataError as error:
        return checks.Check(
            title,
            'error',
            f'its policy cannot be read: {error}',
            'define the domain again: start the server with a hard reboot',
        )
    except desired.POLICY_ERRORS as error:
        return checks.Check(
            title,
            'error',
            _describe_unenforceable_policy(error, section),
            _REMEDY,
        )
    return checks.Check(title, 'ok', 'the kernel can enforce its policy')


def _describe_unenforceable_policy(
    reason: str | Exception, section: Any
) -> str:
    """Return an error text for a guest whose bandwidth policy is not enforced.

    The text also says whether such a guest may start.

    :param reason: reason why the policy cannot be enforced.
    :param section: the ``[ghsched]`` section of the configuration.
    """
    rule = section.unprotected_guests
    return (f'its policy cannot be enforced: {reason}; {_START[rule]} '
            f'([ghsched]unprotected_guests={rule})')
