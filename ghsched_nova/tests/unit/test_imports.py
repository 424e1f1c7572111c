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

"""Rules for imports between packages and modules.

The pure parts stay usable without Nova, without libvirt and without each
other, and no module brings eventlet into a Nova service that has chosen
native threads (nova.monkey_patch makes such a service fail at its start).
"""

import ast
from collections.abc import Iterator
import configparser
import functools
import graphlib
import importlib.metadata
import pathlib
import re
import subprocess
import sys

import ddt

from ghsched_nova.features import declared_compute
from ghsched_placement.features.declared_needs import NEEDS
from ghsched_placement.tests import base

TOP = pathlib.Path(__file__).parents[3]

#: The modules of features that know Nova. A feature keeps what it needs of
#: Nova in few modules, so that the others run without it.
FEATURES_WITH_NOVA = {
    'blame': ('blame', 'blame_action', 'blame_rpc'),
    'doctor': ('checks', 'checks_options', 'doctor', 'guaranteed', 'install',
               'kernel_guests', 'leftovers', 'node', 'nova_changes', 'retire',
               'status'),
    'exporter': ('exporter',),
    'index': ('index_feed', 'index_search', 'indexed', 'indexed_manager',
              'nova_seams'),
    'live_change': ('host_moves', 'move_claims', 'nova_cells', 'nova_seams',
                    'records', 'rpc', 'rpcapi', 'server_lock', 'server_set',
                    'servers', 'set_command'),
    'load': ('by_load', 'load_weigher'),
    'numa_auto': ('nova_seams', 'numa_choice', 'numa_choosing_manager',
                  'vf_requests'),
    'packing': ('fragments', 'gradient_weigher', 'host_states'),
    'planner': ('describe', 'plan'),
    'refusals': ('counting_manager', 'nova_seams', 'refusals'),
    'top': ('top',)}

#: The subpackages and modules that may know Nova.
NOVA_SIDE = frozenset(
    f'ghsched_nova.{name}'
    for name in ('api', 'cmd', 'nova_fixes', 'nova_seams', 'pci_requests',
                 'scheduler', 'tests', 'virt')) | frozenset(
    f'ghsched_nova.features.{feature}.{name}'
    for feature, names in FEATURES_WITH_NOVA.items() for name in names
) | frozenset(f'ghsched_nova.features.{name}' for name in (
    'declared_api', 'declared_commands', 'declared_compute',
    'declared_filter', 'declared_host', 'declared_scheduler'))

#: Parts of the core that know neither Nova nor each other.
PURE = frozenset(
    f'ghsched_nova.{name}' for name in ('guest', 'lab.emulator', 'resctrl'))

#: Parts that join the pure ones and know no Nova: the pure ones do not import
#: them, and of them only the later imports the earlier.
JOINING = ('ghsched_nova.monitor', 'ghsched_nova.host',
           'ghsched_nova.lab.bench')

#: Modules of the Nova side that import no Nova, and may be imported by parts
#: that do not: output and files of commands.
FREE_MODULES = frozenset({'ghsched_nova.cmd.console'})

#: Parts from which no chain of imports leads to Nova, beside the modules of
#: features that are not in FEATURES_WITH_NOVA.
WITHOUT_NOVA = ('ghsched_nova.base', 'ghsched_nova.guest',
                'ghsched_nova.host', 'ghsched_nova.lab',
                'ghsched_nova.monitor', 'ghsched_nova.resctrl',
                'ghsched_nova.features',
                'ghsched_placement', *FREE_MODULES)

#: The emulator and the benchmarks, which no cloud needs. The runtime imports
#: none of them: their commands are entry points.
LABORATORY = 'ghsched_nova.lab'
OPENS_LABORATORY = frozenset({LABORATORY, 'ghsched_nova.tests'})


#: The extras of setup.cfg that a part may need beside requirements.txt.
EXTRAS = {
    **dict.fromkeys(NOVA_SIDE, {'nova'}),
    'ghsched_nova.cmd.domains': {'libvirt'},
    'ghsched_nova.lab.bench': {'bench', 'osc'},
    'ghsched_nova.lab.emulator': {'testing'},
    'ghsched_nova.features.explain': {'osc'},
    'ghsched_nova.features.planner': {'osc'},
    'ghsched_nova.features.refusals.refusal_log': {'nova'},
    'ghsched_nova.features.top.guest_reader': {'libvirt'},
    'ghsched_placement.features.doctor': {'osc'},
    'ghsched_placement.features.flavor_check': {'osc'},
    'ghsched_placement.features.planner': {'plan', 'osc'},
    'ghsched_placement.features.rebalance': {'osc'},
    'ghsched_placement.features.refusals.refusals': {'osc'},
    'ghsched_placement.features.rebalance.watcher': {'watcher'},
    'ghsched_placement.features.rebalance.watcher_base': {'watcher'},
    'ghsched_placement.features.rebalance.watcher_room': {'watcher'},
    'ghsched_placement.osc': {'osc'},
    'tempest_plugin': {'tempest'}}
#: Distributions of packages of other names that no test needs.
DISTRIBUTIONS = {'watcher': ['python-watcher'],
                 'libvirt': ['libvirt-python']}


def modules(package: str) -> Iterator[tuple[str, pathlib.Path]]:
    """Dotted name and file of every module of a package."""
    for path in sorted((TOP / package).rglob('*.py')):
        parts = path.relative_to(TOP).with_suffix('').parts
        if parts[-1] == '__init__':
            parts = parts[:-1]
        yield '.'.join(parts), path


@functools.cache
def parse(source: str) -> ast.Module:
    """Return the syntax tree of a source, parsed once per process."""
    return ast.parse(source)


@functools.cache
def imports(source: str, module: str, is_package: bool) -> set[str]:
    """Dotted names that a module imports, at its top or in a function.

    ``from a import b`` counts as ``a.b``, because b may be a module.
    """
    found = set()
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ''
            if node.level:
                above = module.split('.')
                drop = node.level - is_package
                above = above[:len(above) - drop]
                origin = '.'.join([*above, *filter(None, [origin])])
            found |= {f'{origin}.{alias.name}' for alias in node.names}
    return found


def belongs(name: str, package: str) -> bool:
    return name == package or name.startswith(package + '.')


def forbidden(module: str) -> set[str]:
    """The packages that a module must not import."""
    taboo = {'eventlet'}
    if belongs(module, 'ghsched_placement'):
        taboo |= {'nova', 'libvirt', 'ghsched_nova'}
    if belongs(module, 'tempest_plugin'):
        taboo |= {'nova', 'libvirt', 'ghsched_nova'}
    if belongs(module, 'ghsched_nova') and not any(
            belongs(module, side) for side in NOVA_SIDE):
        taboo |= {'nova'} | NOVA_SIDE
    for part in PURE:
        if belongs(module, part):
            taboo |= PURE - {part} | set(JOINING)
    for number, part in enumerate(JOINING):
        if belongs(module, part):
            taboo |= set(JOINING[number + 1:])
    if belongs(module, 'ghsched_nova') and not any(
            belongs(module, opens) for opens in OPENS_LABORATORY):
        taboo.add(LABORATORY)
    return taboo


def allowed(module: str, name: str) -> bool:
    if any(belongs(name, free) for free in FREE_MODULES):
        return belongs(module, 'ghsched_nova')
    return not any(belongs(name, taboo) for taboo in forbidden(module))


def offences(module: str, path: pathlib.Path) -> list[str]:
    names = imports(path.read_text(), module, path.name == '__init__.py')
    return sorted(f'{module} imports {name}' for name in names
                  if not allowed(module, name))


def runtime_modules() -> Iterator[tuple[str, pathlib.Path]]:
    """Return dotted name and file of every module that is not a test."""
    for package in ('ghsched_nova', 'ghsched_placement'):
        for module, path in modules(package):
            if '.tests' not in module:
                yield module, path


@functools.cache
def runtime_graph() -> dict[str, set[str]]:
    """Return the modules of the project that each of its modules imports."""
    ours = dict(runtime_modules())
    return {module: {
        origin for name in imports(path.read_text(), module,
                                   path.name == '__init__.py')
        for origin in (name, name.rpartition('.')[0])
        if origin in ours and origin != module}
        for module, path in ours.items()}


def packages_of(module: str) -> set[str]:
    """Return the packages that a module is in."""
    parts = module.split('.')
    return {'.'.join(parts[:end]) for end in range(1, len(parts))}


def reached(start: str, graph: dict[str, set[str]]) -> set[str]:
    """Return the modules that an import of a module loads, itself included.

    The packages that a module is in are loaded with it.
    """
    found: set[str] = set()
    open_ = {start}
    while open_:
        module = open_.pop()
        found.add(module)
        open_ |= (graph[module] | packages_of(module)) - found
    return found


def feature_graph() -> dict[str, set[str]]:
    """Return the features that the modules of each feature import."""
    graph: dict[str, set[str]] = {}
    for module, origins in runtime_graph().items():
        owner = owning_feature(module)
        graph.setdefault(owner, set()).update(
            {owning_feature(origin) for origin in origins} - {owner, ''})
    del graph['']
    return graph


def owning_feature(module: str) -> str:
    """Return the feature that a module belongs to; empty for none."""
    name = module.partition('.features.')[2].partition('.')[0]
    return '' if name.startswith('declared') else name


@functools.cache
def imports_nova(module: str, path: pathlib.Path) -> bool:
    """Whether a module itself imports a module of Nova."""
    return any(belongs(name, 'nova') for name in imports(
        path.read_text(), module, path.name == '__init__.py'))


def requirements(text: str) -> set[str]:
    """Distributions of a list of requirements, as PEP 503 spells them."""
    return {re.sub('[-_.]+', '-', match[0]).lower() for match in map(
        re.compile(r'[A-Za-z][A-Za-z0-9._-]*').match,
        text.splitlines()) if match}


class DeclaredTest(base.TestCase):
    """Each distribution that is imported is one that is asked for."""

    def setUp(self):
        super().setUp()
        self.always = requirements((TOP / 'requirements.txt').read_text())
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(TOP / 'setup.cfg')
        self.extras = {name: requirements(text)
                       for name, text in parser['extras'].items()}
        self.distributions = {
            **importlib.metadata.packages_distributions(), **DISTRIBUTIONS}

    def declared(self, module):
        names = set().union(*(extras for part, extras in EXTRAS.items()
                              if belongs(module, part)))
        return self.always.union(*(self.extras[name] for name in names))

    def test_distributions_that_are_imported_are_declared(self):
        missing = []
        for package in ('ghsched_nova', 'ghsched_placement',
                        'tempest_plugin'):
            for module, path in modules(package):
                if 'tests' not in module.split('.')[:2]:
                    missing += self._missing(module, path)
        self.assertEqual([], missing)

    def _missing(self, module, path):
        names = {name.partition('.')[0] for name in imports(
            path.read_text(), module, path.name == '__init__.py')}
        for name in sorted(names - set(sys.stdlib_module_names)):
            found = self.distributions.get(name, [name])
            spelt = {re.sub('[-_.]+', '-', one).lower() for one in found}
            if (not name.startswith('ghsched_') and name != 'tempest_plugin'
                    and not spelt & self.declared(module)):
                yield f'{module} imports {name} of {found}'


#: Of lxml.etree, what builds, searches or writes a tree, and reads none.
#: Some parsers of lxml before 6.1 read files that an XML text names
#: (CVE-2026-41066).
BUILDS_XML = frozenset({
    'Comment', 'Element', 'QName', 'SubElement', '_Comment', '_Element',
    'indent', 'tostring'})


def reads_xml(source):
    """Return what a module uses of lxml and of other XML libraries to parse.
    """
    found = set()
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(
                node.value, ast.Name) and node.value.id == 'etree':
            found |= {node.attr} - BUILDS_XML
    return found | {name for name in imports(source, 'module', False) if
                    name.startswith(('lxml.', 'xml.', 'defusedxml'))
                    and name != 'lxml.etree'
                    or name in ('lxml', 'xml')}


class XmlTest(base.TestCase):

    def test_xml_is_parsed_by_one_function(self):
        found = {module: reads_xml(path.read_text())
                 for package in ('ghsched_nova', 'ghsched_placement')
                 for module, path in modules(package)
                 if 'tests' not in module.split('.')}
        self.assertEqual(
            {'ghsched_nova.guest.document': {
                'XMLParser', 'XMLSyntaxError', 'fromstring'}},
            {module: names for module, names in found.items() if names})


def list_hidden_annotations(source):
    """Return names in annotations of a class that its own members hide.

    Python 3.14 looks for them in the class first, when somebody asks.
    """
    hidden = set()
    for kind in ast.walk(parse(source)):
        if not isinstance(kind, ast.ClassDef):
            continue
        members = {one.name if isinstance(one, ast.FunctionDef)
                   else getattr(one.target, 'id', '') for one in kind.body
                   if isinstance(one, ast.FunctionDef)
                   or isinstance(one, ast.AnnAssign) and one.value}
        hidden |= members & {
            part.value.id for one in kind.body
            for annotation in list_annotations(one)
            for part in ast.walk(annotation)
            if isinstance(part, ast.Attribute)
            and isinstance(part.value, ast.Name)}
    return hidden


def list_annotations(member):
    """Return the annotations of a method, or of a field of a class."""
    if isinstance(member, ast.AnnAssign):
        return [member.annotation]
    if not isinstance(member, ast.FunctionDef):
        return []
    return [one for one in (member.returns, *(
        argument.annotation for argument in (
            *member.args.args, *member.args.kwonlyargs))) if one]


class AnnotationTest(base.TestCase):

    def test_no_member_of_a_class_hides_a_module_in_its_annotations(self):
        self.assertEqual({}, {
            module: names for package in ('ghsched_nova', 'ghsched_placement')
            for module, path in modules(package)
            if (names := list_hidden_annotations(path.read_text()))})


@ddt.ddt
class ImportRulesTest(base.TestCase):

    @ddt.data('ghsched_nova', 'ghsched_placement', 'tempest_plugin')
    def test_package_keeps_to_the_rules(self, package):
        found = [line for module, path in modules(package)
                 for line in offences(module, path)]
        self.assertEqual([], found)

    def test_no_module_needs_itself(self):
        graph = runtime_graph()
        # An import of a module runs the packages that it is in first.
        for module, needs in graph.items():
            graph[module] = {loaded for one in needs
                             for loaded in (one, *packages_of(one))
                             if not f'{module}.'.startswith(f'{loaded}.')}
        self.assertEqual(len(graph), len(tuple(
            graphlib.TopologicalSorter(graph).static_order())))

    def test_features_import_what_they_are_declared_to_need(self):
        self.assertEqual(
            {feature: set(needs) for feature, needs in NEEDS.items()},
            feature_graph())

    def test_features_are_declared_after_those_that_they_need(self):
        self.assertEqual([], [
            f'{feature} needs {need}'
            for number, (feature, needs) in enumerate(NEEDS.items())
            for need in needs if need not in tuple(NEEDS)[:number]])

    def test_features_of_nova_compute_observe_only_what_they_need(self):
        for feature in declared_compute.FEATURES:
            self.assertLessEqual(set(feature.needs),
                                 set(NEEDS[feature.name]), feature.name)

    @ddt.data(*WITHOUT_NOVA)
    def test_part_without_nova_reaches_no_module_that_imports_nova(self, part):
        graph = runtime_graph()
        ours = dict(runtime_modules())
        starts = [module for module in graph if belongs(module, part)
                  and module not in NOVA_SIDE]
        self.assertNotEqual([], starts)
        self.assertEqual([], [
            f'{start} imports {module}, which imports nova'
            for start in starts for module in sorted(reached(start, graph))
            if imports_nova(module, ours[module])])


#: What nova-scheduler loads of ours; a new one is added with its reason.
SCHEDULER_LOADS = frozenset(
    'ghsched_nova' + name for name in (
        '', '.base', '.base.atomic_file', '.base.wrappers', '.conf',
        '.conf.bandwidth',
        '.conf.compute',
        '.features', '.features.declared_filter',
        '.features.declared_options',
        '.features.declared_scheduler',
        '.features.index', '.features.index.aged_cache',
        '.features.index.cloud_memory',
        '.features.index.derived_candidates',
        '.features.index.host_capacity', '.features.index.host_index',
        '.features.index.index_feed', '.features.index.index_metrics',
        '.features.index.index_search', '.features.index.indexed',
        '.features.index.indexed_manager', '.features.index.nova_seams',
        '.features.index.options', '.features.live_change',
        '.features.live_change.options',
        '.features.index.refusal_cache',
        '.features.load', '.features.load.by_load',
        '.features.load.options', '.features.numa_auto',
        '.features.numa_auto.nova_seams',
        '.features.numa_auto.numa_choice',
        '.features.numa_auto.numa_choosing_manager',
        '.features.numa_auto.vf_requests', '.features.packing',
        '.features.packing.fragments', '.features.packing.host_states',
        '.features.packing.options',
        '.features.real_time', '.features.real_time.options',
        '.features.rebalance', '.features.rebalance.options',
        '.features.refusals',
        '.features.refusals.counting_manager',
        '.features.refusals.refusal_log', '.nova_fixes',
        '.nova_fixes.devices_of_far_pf', '.nova_fixes.patches',
        '.nova_fixes.rows', '.nova_fixes.servers', '.nova_fixes.table',
        '.nova_seams', '.nova_seams.numa', '.nova_seams.parts',
        '.nova_seams.pci', '.nova_seams.registry', '.nova_seams.scheduler',
        '.nova_seams.shared',
        '.nova_seams.signatures', '.pci_requests', '.scheduler'))


class SchedulerLoadsTest(base.TestCase):
    """Modules loaded in a fresh interpreter; this one has loaded far more."""

    def loaded(self):
        program = (
            'import sys\n'
            'from nova.cmd import scheduler\n'
            'from nova.scheduler import manager\n'
            'import nova.service\n'
            'before = set(sys.modules)\n'
            'import importlib\n'
            'import pkgutil\n'
            'import ghsched_nova.scheduler as room\n'
            'for module in pkgutil.iter_modules(room.__path__):\n'
            '    importlib.import_module(f"{room.__name__}.{module.name}")\n'
            'importlib.import_module('
            '"ghsched_nova.features.declared_scheduler")\n'
            'print(*set(sys.modules) - before)\n')
        done = subprocess.run(  # noqa: S603
            [sys.executable, '-c', program], cwd=TOP, check=True,
            capture_output=True, text=True)
        return set(done.stdout.split())

    def test_no_lxml_and_no_resctrl(self):
        loaded = self.loaded()
        self.assertEqual(set(), {
            name for name in loaded
            if name.partition('.')[0] in ('lxml', 'libvirt')})
        ours = {name for name in loaded if name.startswith('ghsched_nova')
                and not name.startswith('ghsched_nova.scheduler.')}
        self.assertEqual(set(), ours - SCHEDULER_LOADS)


class CommandLoadsTest(base.TestCase):
    """A command that cron calls starts fast, and warns of nothing."""

    def loaded(self, statements):
        done = subprocess.run(  # noqa: S603
            [sys.executable, '-c',
             f'import sys\n{statements}\nprint(*sys.modules)'],
            cwd=TOP, check=True, capture_output=True, text=True)
        self.assertEqual('', done.stderr)
        return set(done.stdout.split())

    @base.needs_features('top')
    def test_looking_at_a_host_loads_little(self):
        found = self.loaded('from ghsched_nova.cmd import host\n'
                            'from ghsched_nova.features.top import top')
        # oslo.log alone takes half as long as all that is needed.
        self.assertEqual(set(), found & {
            'eventlet', 'oslo_log.log', 'oslo_privsep',
            'oslo_utils.strutils', 'nova'})
