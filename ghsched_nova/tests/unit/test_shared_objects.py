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

"""Every object that changes is stressed by native threads, or not shared.

Nova 34 runs native threads. The classes that change after they were made are
found in the source; each is in a table here.
"""

import ast
import inspect
from pathlib import Path
import pkgutil

import ghsched_nova
from ghsched_placement.features.declared_needs import NEEDS
from ghsched_placement.tests import base

TOP = Path(ghsched_nova.__file__).parents[1]

#: Folders and modules whose objects live in one thread of a command.
NOT_SERVICES = (
    'ghsched_nova/cmd/', 'ghsched_nova/features/density/',
    'ghsched_nova/features/doctor/', 'ghsched_nova/features/explain/',
    'ghsched_nova/features/exporter/cloud_exporter',
    'ghsched_nova/features/planner/', 'ghsched_nova/features/top/top.',
    'ghsched_nova/lab/',
    'ghsched_nova/tests/', 'ghsched_placement/features/density/documents.py',
    'ghsched_placement/features/density/',
    'ghsched_placement/features/doctor/',
    'ghsched_placement/features/exporter/cloud_cache',
    'ghsched_placement/features/flavor_check/',
    'ghsched_placement/features/planner/',
    'ghsched_placement/features/rebalance/re', 'ghsched_placement/osc/',
    'ghsched_placement/tests/')
#: Commands that serve.
SERVICES = ('ghsched_nova/features/exporter/exporter.py',)

#: Methods that change what they belong to.
CHANGES = frozenset({
    'add', 'append', 'appendleft', 'clear', 'discard', 'extend', 'insert',
    'pop', 'popitem', 'popleft', 'remove', 'setdefault', 'subtract',
    'update'})
_MADE = frozenset({'__init__', '__new__', '__post_init__', '__setattr__'})

_UNIT = 'ghsched_nova.tests.unit.'
_HOST = _UNIT + 'host.test_threads.'
_CHANGE = _UNIT + 'features.live_change.test_change_threads.'
_SCHEDULER = _UNIT + 'features.packing.test_threads.'
_STATE = _UNIT + 'scheduler.test_shared_state.'
_CLAIMS = (_STATE + 'ClaimsStressTest'
           '.test_requests_under_native_threads_release_only_their_claims')
_REPORT = _HOST + 'ReportStressTest.'
_INDEX = (_SCHEDULER + 'IndexStressTest'
          '.test_index_after_concurrent_steps_equals_a_fresh_one')
_SCRAPES = (_UNIT + 'features.exporter.test_exporter.BoundsTest'
            '.test_scrapes_at_one_time_read_the_host_once')

#: The test that shares an object among threads, by class or variable.
STRESSED = {
    'ghsched_nova.features.exporter.exporter._Server': _UNIT + (
        'features.exporter.test_exporter.BoundsTest'
        '.test_scrapes_that_are_too_many_are_answered_503'),
    'ghsched_nova.nova_seams.registry.REPLACED': _UNIT + (
        'nova_seams.test_registry.ReplaceTest'
        '.test_replacements_under_native_threads_are_made_once'),
    'ghsched_nova.features.rebalance.flow_source.Meter':
        _REPORT + 'test_reports_under_native_threads_are_observed_in_turn',
    'ghsched_nova.features.top.guest_reader.LibvirtReader': _SCRAPES,
    'ghsched_nova.features.load.load_meter.LoadMeter':
        _REPORT + 'test_reports_under_native_threads_are_observed_in_turn',
    'ghsched_nova.features.load.load_reader.LoadReader':
        _REPORT + 'test_reports_under_native_threads_are_observed_in_turn',
    'ghsched_nova.features.exporter.metrics.HostCollector': _SCRAPES,
    'ghsched_nova.monitor.reader.Reader': _UNIT + (
        'monitor.test_reader.ThreadsTest'
        '.test_reader_under_native_threads_has_a_rate_for_each_round'),
    'ghsched_nova.features.top.shared_work.SharedWork': _UNIT + (
        'features.top.test_shared_work.SharedWorkTest'
        '.test_result_for_many_threads'
        '_is_of_work_after_they_asked_or_of_then'),
    'ghsched_nova.scheduler.claims.Claims': _CLAIMS,
    'ghsched_nova.features.packing.fragments.MaxFreeDevices':
        _SCHEDULER + 'DevicesStressTest'
        '.test_most_devices_under_native_threads_never_shrink',
    'ghsched_nova.features.index.host_index.IndexedHost': _INDEX,
    'ghsched_nova.features.index.host_index.Index': _INDEX,
    'ghsched_nova.features.index.index_feed.Feed':
        _SCHEDULER + 'FeedStressTest'
        '.test_feed_under_native_threads_equals_the_database',
    'ghsched_nova.features.index.index_metrics.Writer':
        _SCHEDULER + 'OthersStressTest'
        '.test_metrics_under_native_threads_are_written_whole',
    'ghsched_nova.features.index.indexed.IndexedScheduler':
        _SCHEDULER + 'RequestStressTest'
        '.test_requests_under_native_threads_are_all_counted',
    'ghsched_nova.scheduler.request_state.RequestState': _CLAIMS,
    'ghsched_nova.scheduler.unread_reports.Warnings':
        _SCHEDULER + 'OthersStressTest'
        '.test_warnings_under_native_threads_name_each_host_once',
    'ghsched_nova.features.index.aged_cache.AgedCache':
        _SCHEDULER + 'RefusalStressTest'
        '.test_refusals_under_native_threads_stay_bounded',
    'ghsched_nova.features.index.refusal_cache.RefusalCache':
        _SCHEDULER + 'RefusalStressTest'
        '.test_refusals_under_native_threads_stay_bounded',
    'ghsched_nova.host.bandwidth_use.BandwidthMeter': _UNIT + (
        'host.test_guest_diagnostics.ThreadsTest'
        '.test_bandwidth_use_of_many_threads_makes_one_reader'),
    'ghsched_nova.features.blame.blame_cap.Capper': _UNIT + (
        'features.blame.test_blame_cap.CapperTest'
        '.test_caps_under_native_threads_are_released_in_turn'),
    'ghsched_nova.host.compute_hooks.ComputeHookCaller':
        _REPORT + 'test_reports_under_native_threads_are_observed_in_turn',
    'ghsched_nova.host.engine.HostEngine':
        _HOST + 'EngineStressTest'
        '.test_engine_under_native_threads_keeps_the_newest_reasons',
    'ghsched_nova.host.guest_diagnostics.GuestDiagnostics': _UNIT + (
        'host.test_guest_diagnostics.ThreadsTest'
        '.test_diagnostics_of_many_threads_are_whole_and_listed_once'),
    'ghsched_nova.features.live_change.guest_move.Mover':
        _CHANGE + 'MoverStressTest'
        '.test_mover_under_native_threads_moves_each_guest',
    'ghsched_nova.features.service_level.protection_events.ProtectionNotifier':
        _REPORT + 'test_notices_under_native_threads_are_sent_in_turn',
    'ghsched_nova.host.readings.RoundingCache':
        _HOST + 'ReadingsStressTest'
        '.test_readings_under_native_threads_are_measured_once',
    'ghsched_nova.features.live_change.rpc.PolicyEndpoint':
        _CHANGE + 'EndpointStressTest'
        '.test_void_calls_under_native_threads_are_refused',
    'ghsched_nova.features.real_time.host_scheduling.ThreadScheduler':
        _REPORT + 'test_classes_under_native_threads_are_tried_once',
    'ghsched_placement.features.packing.gradient.Mix':
        _SCHEDULER + 'OthersStressTest'
        '.test_mix_under_native_threads_counts_the_last_requests',
}

_CALL = 'made for one call'
_REQUEST = 'made for one request'
_START = 'changed while a service starts'
_LOCKED = 'changed while the tracker of resources of Nova is locked'
_REPLACED = 'each attribute is replaced as a whole, by reports of the host'
_IN_TURN = 'ComputeHookCaller has one report observed at a time'

#: Why an object is not shared, by class.
NOT_SHARED = {
    'ghsched_nova.base.privsep.Context': 'a lock guards its counters',
    'ghsched_nova.features.blame.blame_cap.'
    'Pauses': 'guest_cap_lock() guards it',
    'ghsched_nova.features.blame.blame_record.BlameRecord': _IN_TURN,
    'ghsched_nova.features.bursts.burst_use.BurstRecorder': _IN_TURN,
    'ghsched_nova.features.exporter.repair_counts.RepairCounts': _IN_TURN,
    'ghsched_nova.features.history.history_use.HistoryRecorder': _IN_TURN,
    'ghsched_nova.features.guest_channel.channel.Channel':
        'GuestChannels locks it',
    'ghsched_nova.features.guest_channel.guest_channel.'
    'GuestChannels': 'its lock guards it',
    'ghsched_nova.features.guest_channel.lines.'
    'LineSplitter': "only libvirt's thread calls it",
    'ghsched_nova.features.guest_channel.stream.'
    'GuestStream': "only libvirt's thread changes it; others append to a "
                   'deque, and end it',
    'ghsched_nova.features.index.headroom_report.HeadroomReporter': _IN_TURN,
    'ghsched_nova.features.load.load_use.LoadReporter': _IN_TURN,
    'ghsched_nova.features.rebalance.traffic_report.GuestTraffic': _IN_TURN,
    'ghsched_placement.fit.guest_demand.'
    'GuestDemand': 'one thread asks; two would read the same need',
    'ghsched_nova.features.service_level.service_level_use.'
    'ServiceLevelRecorder': _IN_TURN,
    'ghsched_nova.features.blame.blame_probe.HostProbe': _CALL,
    'ghsched_nova.features.blame.blame_session.Session': _CALL,
    'ghsched_nova.features.rebalance.conntrack.'
    'Conntrack': 'GuestTraffic locks it',
    'ghsched_nova.features.rebalance.conntrack_table._LargestFlows': _CALL,
    'ghsched_nova.features.live_change.records.NovaRecords': _REQUEST,
    'ghsched_nova.nova_fixes.cut_off_live_migration._CompletionSteps': _CALL,
    'ghsched_nova.nova_fixes.patches._PATCHES':
        'declared while modules are imported, each once',
    'ghsched_nova.nova_fixes.table.APPLIED': _START,
    'ghsched_nova.nova_seams.compute._TREE_ALLOCATIONS': _LOCKED,
    'ghsched_nova.nova_seams.parts.OFF': _START,
    'ghsched_nova.nova_seams.registry.SEAMS':
        'declared while modules are imported, each once',
    'ghsched_nova.features.top.top_screen.Top': 'a command of one thread',
    'ghsched_nova.features.top.vcpu_rates.VcpuMeter': 'of the command'
    ' ghsched-top, which has one thread',
    'ghsched_nova.monitor.effective_limits.LimitCache': _CALL,
    'ghsched_nova.resctrl.apply.Executor': _CALL,
    'ghsched_nova.resctrl.counters._CounterAssigner': _CALL,
    'ghsched_nova.resctrl.guest_processes.GuestProcesses': _CALL,
    'ghsched_nova.scheduler.best_nodes.BestNodesView': _REQUEST,
    'ghsched_nova.scheduler.filters._CandidateSearch': _REQUEST,
    'ghsched_nova.scheduler.node_fit_cache.NodeFitCache': _REQUEST,
    'ghsched_nova.scheduler.host_view.HostStateView': _REQUEST,
    'ghsched_nova.features.index.host_capacity.'
    'RequestNeed': 'threads that ask at once would read the same amounts',
    'ghsched_nova.features.index.index_search.Search': _REQUEST,
    'ghsched_nova.features.index.index_search._CandidateCollector': _REQUEST,
    'ghsched_nova.virt.driver.GhschedLibvirtDriver': _REPLACED,
    'ghsched_nova.virt.host_report.HostReport': _REPLACED,
    'ghsched_nova.virt.libvirt_reader.GuestReader': _REPLACED,
    'ghsched_nova.virt.manager.GhschedComputeManager': _START,
    'ghsched_nova.host.host_facts.HostFacts': _REPLACED,
    'ghsched_nova.features.interrupts.interrupts.InterruptMover': _REPLACED,
    'ghsched_nova.host.pci_providers.PciProviderMover': _LOCKED,
    'ghsched_nova.host.report_log.ProblemLog':
        'used while HostEngine holds the lock of its reconciliation',
    'ghsched_placement.fit.counting._Search': _CALL,
    'ghsched_placement.features.packing.gradient.'
    'FragmentationGrowth': _REQUEST,
    'ghsched_placement.fit.lack.GroupedReasons': _REQUEST,
    'ghsched_placement.query.node_loads.NodeLoads': _CALL,
    'ghsched_placement.query.node_assignment._Reader': _CALL,
    'ghsched_placement.query.node_assignment._Assignments': _CALL,
    'ghsched_placement.features.rebalance.move_plan.CloudState': _CALL,
    'ghsched_placement.features.rebalance.pair_search.Budget': _CALL,
    'ghsched_placement.features.rebalance.pair_search.PairSearch': _CALL,
    'ghsched_placement.features.rebalance.flavor_moves._Search': _CALL,
}


def changed(node):
    """Names of the attributes of self that a method changes."""
    for one in ast.walk(node):
        if isinstance(one, ast.Assign | ast.Delete):
            targets = one.targets
        elif isinstance(one, ast.AugAssign | ast.AnnAssign):
            targets = [one.target]
        elif (isinstance(one, ast.Call)
              and isinstance(one.func, ast.Attribute)
              and one.func.attr in CHANGES):
            targets = [one.func.value]
        else:
            continue
        for target in targets:
            for part in getattr(target, 'elts', [target]):
                while isinstance(part, ast.Subscript):
                    part = part.value
                if (isinstance(part, ast.Attribute)
                        and isinstance(part.value, ast.Name)
                        and part.value.id == 'self'):
                    yield part.attr


def changing_classes(tree):
    """Yield the classes with a method that changes an attribute of self."""
    for one in ast.walk(tree):
        if isinstance(one, ast.ClassDef) and any(
                isinstance(method, ast.FunctionDef)
                and method.name not in _MADE and any(changed(method))
                for method in one.body):
            yield one.name


def changing_variables(tree):
    """Yield the variables of a module that its functions change."""
    targets = [target for one in tree.body
               for target in (one.targets if isinstance(one, ast.Assign)
                              else [one.target]
                              if isinstance(one, ast.AnnAssign) else ())]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    for one in ast.walk(tree):
        if isinstance(one, ast.Global):
            yield from one.names
        elif (isinstance(one, ast.Subscript)
              and isinstance(one.ctx, ast.Store | ast.Del)
              and isinstance(one.value, ast.Name) and one.value.id in names):
            yield one.value.id
        elif (isinstance(one, ast.Call)
              and isinstance(one.func, ast.Attribute)
              and one.func.attr in CHANGES
              and isinstance(one.func.value, ast.Name)
              and one.func.value.id in names):
            yield one.func.value.id


def found():
    """Return all that changes in the services, by dotted name."""
    names = set()
    for package in ('ghsched_nova', 'ghsched_placement'):
        for path in sorted((TOP / package).rglob('*.py')):
            relative = path.relative_to(TOP)
            if str(relative) not in SERVICES and str(relative).startswith(
                    NOT_SERVICES):
                continue
            module = '.'.join(relative.with_suffix('').parts)
            tree = ast.parse(path.read_text())
            names |= {f'{module}.{name}' for name in (
                *changing_classes(tree), *changing_variables(tree))}
    return names


class SharedObjectsTest(base.TestCase):

    def test_objects_that_change_are_stressed_or_not_shared(self):
        self.assertEqual(set(), set(STRESSED) & set(NOT_SHARED))
        self.assertEqual(sorted({**STRESSED, **NOT_SHARED}), sorted(found()))

    def test_stress_tests_that_are_named_run_threads(self):
        for name in set(STRESSED.values()):
            feature = name.partition('.features.')[2].partition('.')[0]
            if feature and feature not in NEEDS:
                continue    # Its tests are deleted with it.
            module = inspect.getmodule(pkgutil.resolve_name(name))
            self.assertRegex(
                inspect.getsource(module), r'threads\.stress\(|'
                r'threading\.Thread\(|ThreadPoolExecutor\(', name)
