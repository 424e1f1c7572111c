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

"""Does the index ask Placement for the same as the whole search does?

On random clouds, for random requests: the candidates of each host, asked for
by itself with its traits checked in the answer, must be those that the whole
search has for that host; and so must those that the index derives from another
host's, where it derives any. And whenever the whole search finds a host, the
manager with the index finds one.
"""

import argparse
import collections
from collections.abc import Iterator
import dataclasses
import json
import multiprocessing
import random
import sys
from typing import Any

import scheduler_lab as labs

from nova.scheduler.client import report
from nova.scheduler import request_filter as nova_filter
from nova.scheduler import utils
import sqlalchemy as sa

from ghsched_nova.features.index import derived_candidates
from ghsched_nova.features.index import index_search
from ghsched_nova.scheduler import request_filter
from ghsched_placement.features.index import headroom
from ghsched_placement.providers import names
import scheduler_cloud as clouds


#: Number of pairs of hosts whose candidates were derived.
DERIVED: collections.Counter[str] = collections.Counter()


def request(chance: random.Random) -> labs.Kind:
    """A flavor of any kind that the index is for."""
    nodes = chance.choice((1, 1, 2))
    specs: dict[str, str] = {}
    if chance.random() < .85:
        specs['ghsched:mem_bw_min'] = str(chance.choice((5, 20, 40, 70, 95)))
    if chance.random() < .4:
        specs['ghsched:vfs'] = f'nic:{nodes * chance.choice((1, 4, 30))}'
        specs['ghsched:vfs_locality'] = chance.choice(('node', 'any'))
    if chance.random() < .3:
        specs['ghsched:cpu_cache'] = 'require'
    if chance.random() < .2:
        specs['trait:CUSTOM_RARE'] = chance.choice(('required', 'forbidden'))
    return labs.Kind(nodes, nodes * chance.choice((2, 8, 20)), specs)


def spoil(url: str, chance: random.Random) -> None:
    """Hosts that lack a capability, are disabled, or have a rare trait."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        def number(trait: str) -> int:
            return int(connection.exec_driver_sql(
                'select id from traits where name=?', (trait,)).scalar_one())
        connection.exec_driver_sql(
            "insert into traits (name) values ('CUSTOM_RARE')")
        roots = connection.exec_driver_sql(
            'select id from resource_providers where parent_provider_id is '
            'null').scalars().all()
        lacks = number(names.CAPABILITY_TRAITS['MEM_BW_MIN'])
        for root in roots:
            for trait in ('COMPUTE_STATUS_DISABLED', 'CUSTOM_RARE'):
                if chance.random() < .2:
                    connection.exec_driver_sql(
                        'insert into resource_provider_traits (trait_id, '
                        'resource_provider_id) values (?, ?)',
                        (number(trait), root))
            if chance.random() < .2:
                connection.exec_driver_sql(
                    'delete from resource_provider_traits where trait_id=? '
                    'and resource_provider_id=?', (lacks, root))
    engine.dispose()


def report_shapes(urls: dict[str, str]) -> None:
    """Report the traits and resource classes that the hosts have now."""
    of_host: dict[str, list[set[str]]] = {}
    placement, cell = (sa.create_engine(urls[name])
                       for name in ('placement', 'cell'))
    with placement.begin() as connection:
        for number, table in enumerate(('trait', 'resource_class')):
            relation = ('resource_provider_traits' if number == 0
                        else 'inventories')
            kinds = 'traits' if number == 0 else 'resource_classes'
            text = ('select p.uuid, k.name '  # noqa: S608
                    'from resource_providers p, '
                    f'{relation} r, {kinds} k where '
                    f'k.id = r.{table}_id and r.resource_provider_id = p.id '
                    'and p.parent_provider_id is null')
            for host, name in connection.exec_driver_sql(text):
                of_host.setdefault(host, [set(), set()])[number].add(name)
    with cell.begin() as connection:
        for host, text in connection.exec_driver_sql(
                'select uuid, stats from compute_nodes').fetchall():
            stats = json.loads(text)
            left = headroom.parse_headroom_stats(stats)
            assert left is not None  # noqa: S101
            stats.update(headroom.make_headroom_stats(dataclasses.replace(
                left, shape=headroom.hash_provider(*of_host[host]))))
            connection.exec_driver_sql(
                'update compute_nodes set stats=? where uuid=?',
                (json.dumps(stats), host))
    placement.dispose()
    cell.dispose()


def _key(candidate: Any) -> str:
    return json.dumps([candidate['allocations'], {
        suffix: sorted(providers) for suffix, providers
        in candidate['mappings'].items()}], sort_keys=True)


def compare(lab: labs.Lab, spec: Any, hosts: list[str]) -> list[str]:
    """Hosts whose candidates differ."""
    tried = spec.obj_clone()
    policy = request_filter.parse_policy(tried)
    if policy and policy.vfs:
        request_filter.set_vf_query_option(
            tried, request_filter.VfQueryOption('node'), {})
    nova_filter.process_reqspec(lab.context, tried)
    resources = utils.resources_from_request_spec(
        lab.context, tried, lab.manager.host_manager,
        enable_pinning_translate=True)
    resources._limit = None
    text, version = resources.to_querystring(), report.SAME_SUBTREE_VERSION
    whole = lab.placement.get(f'/allocation_candidates?{text}',
                              microversion=version).json()
    of_host: dict[str, set[str]] = collections.defaultdict(set)
    for candidate in whole['allocation_requests']:
        root = whole['provider_summaries'][next(iter(
            candidate['allocations']))]['root_provider_uuid']
        of_host[root].add(_key(candidate))
    query = index_search.make_one_host_query(text)
    answers = {host: lab.placement.get(
        f'/allocation_candidates?{query.for_host(host)}',
        microversion=version).json() for host in hosts}
    found = {host: index_search.filter_by_traits(query, answer, host)
             for host, answer in answers.items()}
    asked = [host for host in hosts
             if of_host[host] != set(map(_key, found[host]))]
    return asked + [
        f'{other} by {host}'
        for host, other, derived in derive(lab, spec, query, answers, found)
        if {_key(one) for one in found[other] if _has_own_nodes(one)}
        != set(map(_key, derived))]


def _has_own_nodes(candidate: Any) -> bool:
    """Whether each guest NUMA node has a host NUMA node of its own."""
    nodes = [chosen[0] for suffix, chosen in candidate['mappings'].items()
             if suffix.startswith(names.make_bandwidth_suffix(0)[:-1])]
    return len(set(nodes)) == len(nodes)


def derive(lab: labs.Lab, spec: Any, query: index_search.Query,
           answers: dict[str, Any], found: dict[str, Any]
           ) -> Iterator[tuple[str, str, Any]]:
    """Yield two hosts, and candidates of the second by those of the first.

    Only hosts are yielded that the index may propose.
    """
    need = lab.manager._indexed.compute_need(lab.context, spec,
                                             [spec.instance_uuid])
    views = {view.row.uuid: view for view
             in lab.manager._indexed.index.list_views()}
    for host in found:
        template = found[host] and not query.has_granular_traits and (
            derived_candidates.make_candidate_template(
                query.parameters, found[host],
                answers[host]['provider_summaries'], views[host].row))
        for other in found if template else ():
            derived = derived_candidates.derive_candidates(template,
                                                           views[other])
            if derived and views[other].assign_nodes(need) is not None:
                DERIVED.update(derived=1)
                yield host, other, derived


def one_cloud(seed: int, count: int, hosts: int, asked: int,
              pipe: Any) -> None:
    """Compare random requests on a random cloud."""
    chance = random.Random(seed)  # noqa: S311
    with labs.make_database_directory('sqlite') as directory:
        urls = clouds.databases('sqlite', directory)
        labs.objects.register_all()
        cloud = clouds.build(urls, hosts, seed, chance.choice((2, 4)),
                             chance.choice((.3, .6, .9)))
        spoil(urls['placement'], chance)
        report_shapes(urls)
        lab = labs.Lab(urls, 'index')
        uuids = [host.uuid for host in cloud.hosts]
        differ, found = [], 0
        for number in range(count):
            kind = request(chance)
            spec = lab.spec(kind)
            wrong = compare(lab, spec, chance.sample(uuids, asked))
            by_index, whole = (_places(lab, spec, indexed)
                               for indexed in (True, False))
            found += whole
            if wrong or by_index != whole:
                differ.append(f'cloud {seed}, request {number}, {kind}: '
                              f'{wrong}, {by_index} != {whole}')
    pipe.send((count, found, differ, {
        **lab.manager._indexed._counts, **DERIVED}))


def _places(lab: labs.Lab, spec: Any, indexed: bool) -> bool:
    """Whether a host is found; the guest is taken away again."""
    kept = lab.manager._indexed
    lab.manager._indexed = kept if indexed else None
    kept.drop_cached_refusals()
    try:
        found, _reason = lab.select(spec.obj_clone(), [spec.instance_uuid])
    finally:
        lab.manager._indexed = kept
    if found:
        lab.forget([spec.instance_uuid])
    return bool(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--clouds', type=int, default=4)
    parser.add_argument('--requests', type=int, default=8)
    parser.add_argument('--hosts', type=int, default=12)
    parser.add_argument('--asked', type=int, metavar='HOSTS',
                        help='whose candidates are compared for each request, '
                        'at random; all unless given')
    parser.add_argument('--seed', type=int, default=1)
    options = parser.parse_args()
    fork = multiprocessing.get_context('fork')
    pairs = placed = 0
    wrong: list[str] = []
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(options.seed, options.seed + options.clouds):
        pipe, other = fork.Pipe()
        process = fork.Process(target=one_cloud, args=(
            seed, options.requests, options.hosts,
            min(options.asked or options.hosts, options.hosts), other))
        process.start()
        other.close()
        count, found, differ, how = pipe.recv()
        process.join()
        pairs, placed, wrong = pairs + count, placed + found, wrong + differ
        counts.update(how)
        print(*differ, f'{pairs} pairs so far, {len(wrong)} differ',
              sep='\n', file=sys.stderr, flush=True)
    for line in wrong:
        print(line)
    print(f'{pairs} pairs of cloud and request, {placed} with a host, '
          f'{len(wrong)} differ; by the index {counts["hits"]}, in vain '
          f'{counts["fallbacks"]}, not for it {counts["others"]}; '
          f'{counts["derived"]} derived')
    sys.exit(bool(wrong))
