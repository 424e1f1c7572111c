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

"""Changes of Nova by the programs of ghsched that call Nova's ``main()``.

Nothing here imports a module of Nova that reads options when it is imported.
"""

from collections.abc import Callable
import importlib
import sys
import types
from typing import Any

import nova.conf
from nova import service

from ghsched_nova.nova_seams import registry

seam = registry.make_seam_decorator(registry.SCHEDULER, registry.COMPUTE)
_compute_seam = registry.make_seam_decorator(registry.COMPUTE)


@seam('nova.service.SERVICE_MANAGERS',
      replaced='The managers of ``ghsched-nova-scheduler`` and '
               '``ghsched-nova-compute`` (one entry of the table each); Nova '
               'has no option for its managers.')
@seam('nova.service.Service.create',
      ('host', 'binary', 'topic', 'manager', 'report_interval',
       'periodic_enable', 'periodic_fuzzy_delay', 'periodic_interval_max',
       'topic_alt'),
      optional=frozenset({'topic_alt'}))
def replace_manager_class(binary: str, path: str) -> None:
    """Make a Nova service use ghsched's manager class.

    ``nova.service.Service.create`` looks the class up in
    ``nova.service.SERVICE_MANAGERS`` by the name of the binary, unless its
    caller names a class. ``nova.cmd.scheduler.main`` and
    ``nova.cmd.compute.main`` name none. The class is imported once Nova has
    read its configuration.

    :param binary: name of the service's binary.
    :param path: dotted name of ghsched's manager class.
    """
    service.SERVICE_MANAGERS[binary] = path
    registry.record_addition('nova.service.SERVICE_MANAGERS', path)


@_compute_seam('nova.config.parse_args',
               ('argv', 'default_config_files', 'configure_db', 'init_rpc',
                'prog'), optional=frozenset({'prog'}),
               replaced='``ghsched-nova-compute`` refuses another driver '
                        'before it waits for nova-conductor; Nova has no hook '
                        'there.')
def call_when_configured(function: Callable[[Any], None]) -> None:
    """Make nova-compute call a function once it has read its configuration.

    nova-compute has not logged anything at that time, and no other service
    waits for it.

    :param function: takes Nova's configuration.
    """
    def parse_args(original: Callable[..., Any], *args: Any,
                   **kwargs: Any) -> None:
        original(*args, **kwargs)
        function(nova.conf.CONF)

    registry.replace_function('nova.config.parse_args', parse_args)


@_compute_seam('nova.virt',
               replaced='The driver (the package gets the module '
                        '``nova.virt.ghsched``); Nova looks for drivers in no '
                        'other package.')
@_compute_seam('nova.virt.driver.load_compute_driver',
               ('virtapi', 'compute_driver'))
def register_driver_class(path: str) -> None:
    """Make a compute driver's class importable from ``nova.virt.ghsched``.

    ``nova.virt.driver.load_compute_driver`` imports
    ``nova.virt.<compute_driver>``. Python looks in ``sys.modules`` before it
    looks for a file, so this acts on the current process only. The driver is
    imported when Nova gets its class from the module.

    :param path: dotted name of the driver's class.
    """
    module_name, _, class_name = path.rpartition('.')

    def get_class(attribute: str) -> Any:
        # Whatever looks at all modules asks for other attributes.
        if attribute != class_name:
            raise AttributeError(attribute)
        return getattr(importlib.import_module(module_name), class_name)

    module = types.ModuleType('nova.virt.ghsched')
    module.__dict__['__getattr__'] = get_class
    sys.modules[module.__name__] = module
    registry.record_addition('nova.virt', path)
