#!/bin/bash
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

# What takes too long for .ci/run, in parts: all of each exhaustive test
# (exhaustive), the tree without each feature (features), every release of
# Nova (releases), its newest source (newest: a report of what the newest of the
# package index changes, and the tests with the git repository or the unpacked
# tree at $NOVA_TREE), our patches for Nova, and that repairs end with them
# (upstream), properties with new examples and the judge of guest NUMA nodes (properties), random hosts (fuzz), a
# hundred moves inside a host that are killed (killed), each key of a flavor
# through all moves and each sequence of two operations (keys), benchmarks
# (bench), all end-to-end checks and tests of tempest (checks), all moves
# between two hosts of a cloud (moves) and of guests that share groups
# (sharing), an upgrade (upgrade),
# Watcher (watcher), every operation with every fault (pairs), random ones
# (soak), staged cases of servers that others disturb (blame), guest nodes for
# devices with QEMU and libvirt of Debian sid (sid), Aetos,
# Ceilometer, Gnocchi and CloudKitty (tenants), tempest, moves and a restart on
# the virtual compute node, and interrupts of its VFs (vnode). The last line
# counts.
#
# usage: tools/nightly.sh [MINUTES] [PART]...
#   MINUTES  of the soak, 180 by default
#   PART     all in this order, unless some are named

set -euo pipefail
newest=${NOVA_TREE:-}
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

show_help "$0" "$@"
need_root "$@"
cd "$GHSCHED_TOP"

minutes=180
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
    minutes=$1
    shift
fi
ALL=(exhaustive features releases newest upstream properties fuzz killed keys
    bench checks moves sharing upgrade watcher pairs soak blame sid tenants
    vnode)
[ $# -gt 0 ] || set -- "${ALL[@]}"
for part; do
    [[ " ${ALL[*]} " = *" $part "* ]] ||
        { sed -n '/^# usage/,/^$/p' "$0"; exit 2; }
done

part_releases() {
    local release
    for release in 31 32 33; do
        stage "Nova $release" 60 bash tools/test.sh --release "$release"
    done
}

part_newest() {
    local pinned
    pinned=$(sed -n 's/^nova===//p' tools/releases/34.txt)
    stage "what changes after Nova $pinned, log/newest-nova.md" 15 \
        env PYTHONPATH=. "$VENV/bin/python" -W ignore \
        tools/upstream/newest.py "$pinned" newest \
        "$GHSCHED_HOME/log/newest-nova.md"
    if [ -z "$newest" ]; then
        echo 'left out: tests with the newest Nova, NOVA_TREE is not set'
        return
    fi
    stage "newest Nova, $newest" 60 bash tools/test.sh --nova "$newest"
}

part_upstream() {
    stage 'patches of Nova, their tests without and with them' 90 \
        bash tools/upstream/check.sh
    stage 'repairs of Nova end with its patches' 60 \
        bash tools/upstream/patched.sh
}

# Every exhaustive test as a whole; a commit runs an eighth of each.
part_exhaustive() {
    stage 'all tests, all of each space' 120 \
        env GHSCHED_SAMPLE=all bash tools/test.sh unit functional lab
}

part_features() {
    stage 'documentation tools' 10 \
        "$VENV/bin/pip" install -q -r doc/requirements.txt
    stage 'tree without each feature' 120 \
        "$VENV/bin/python" tools/delete_features.py
}

part_properties() {
    stage 'properties, new examples' 60 \
        env GHSCHED_HYPOTHESIS=search GHSCHED_TEST_DEADLINE=1 \
        bash tools/test.sh unit
    stage 'number of guest NUMA nodes, exact judge' 30 \
        env GHSCHED_AUTO_REQUESTS=4000 GHSCHED_AUTO_SEED="$RANDOM" \
        "$VENV/bin/python" -W ignore -m testtools.run \
        ghsched_nova.tests.unit.features.numa_auto.test_numa_judge \
        ghsched_nova.tests.unit.features.index.test_index_judge
}

part_fuzz() {
    stage 'host engine, random hosts' 30 \
        "$VENV/bin/python" tools/fuzz_engine.py
    stage 'host engine, random described controls' 30 \
        "$VENV/bin/python" tools/fuzz_engine.py --described
}

part_killed() {
    stage 'moves inside a host, killed' 60 \
        env GHSCHED_KILLED_MOVES=100 OS_TEST_TIMEOUT=3000 \
        "$VENV/bin/python" -m stestr \
        --test-path ghsched_nova/tests/functional run moves_that_are_killed
}

part_keys() {
    stage 'each key through all moves' 60 \
        env GHSCHED_KEY_JOURNEYS=all OS_TEST_TIMEOUT=3000 \
        "$VENV/bin/python" -m stestr \
        --test-path ghsched_nova/tests/functional run \
        'test_every_key|test_auto_vfs'
    stage 'each sequence of two operations' 60 \
        env GHSCHED_OPERATION_PAIRS=all OS_TEST_TIMEOUT=3000 \
        "$VENV/bin/python" -m stestr \
        --test-path ghsched_nova/tests/functional run test_operation_pairs
    stage 'flavor check and boots in random clouds' 60 \
        env GHSCHED_CHECK_CLOUDS=100 GHSCHED_CHECK_SEED="$RANDOM" \
        OS_TEST_TIMEOUT=1700 "$VENV/bin/python" -m stestr \
        --test-path ghsched_nova/tests/functional run test_flavor_check
    stage 'live migration with passthrough ports' 15 \
        env GHSCHED_LIVE_MIGRATIONS=1 "$VENV/bin/python" -m stestr \
        --test-path ghsched_nova/tests/functional run test_port_live_migration
    stage 'random operations on guests with vCPU classes' 120 \
        env GHSCHED_CLASS_OPERATIONS=1000 \
        GHSCHED_CLASS_OPERATIONS_SEED="$RANDOM" OS_TEST_TIMEOUT=7000 \
        "$VENV/bin/python" -m stestr \
        --test-path ghsched_nova/tests/functional run \
        test_random_class_operations
    stage 'random live migrations of guests with VFs' 60 \
        env GHSCHED_RANDOM_MIGRATIONS=1000 \
        GHSCHED_RANDOM_MIGRATIONS_SEED="$RANDOM" OS_TEST_TIMEOUT=3500 \
        "$VENV/bin/python" -m stestr \
        --test-path ghsched_nova/tests/functional run \
        test_random_live_migrations
}

part_bench() {
    local bench
    stage 'tables of the contention model' 15 \
        "$VENV/bin/python" tools/contention-tables --check
    for bench in provider_tree_bench scheduler_bench wide_host_bench; do
        stage "$bench" 30 "$VENV/bin/python" tools/bench/run "$bench"
    done
    stage 'index and whole search, random clouds' 60 \
        "$VENV/bin/python" -W ignore tools/bench/run scheduler_same \
        --clouds 10 --requests 40 --hosts 6 --asked 3 --seed "$RANDOM"
    stage 'ghsched-bench on guests of a cloud' 30 bash tools/e2e.sh --bench
}

part_checks() {
    stage 'all end-to-end checks' 60 bash tools/e2e.sh
    stage 'a guest with systemd and ghsched-guest' 75 \
        bash tools/e2e.sh --systemd
    stage 'tempest' 30 bash tools/tempest.sh
    stage 'tempest, dedicated CPUs' 15 bash tools/tempest.sh --dedicated
}

part_moves() {
    stage 'moves between two hosts' 90 bash tools/e2e.sh --moves
}

part_sharing() {
    stage 'moves of guests that share groups' 90 \
        bash tools/e2e.sh --moves --sharing
}

# Before the first release: what spoke another version of our messages.
part_upgrade() {
    local older
    older=$(git describe --tags --abbrev=0 HEAD^ 2> /dev/null) ||
        older=$(git log -1 --format=%h -G'^VERSION = ' \
            -- ghsched_nova/features/live_change/messages.py)^
    stage "a host with $older" 30 bash tools/e2e.sh --upgrade "$older"
}

part_watcher() {
    stage 'rebalancing by Watcher' 30 bash tools/e2e.sh --watcher
    # Apart from other tests: options of Watcher are not those of Nova.
    stage 'strategy of Watcher' 10 env PYTHONPATH="$VENV/watcher" \
        "$VENV/bin/python" -m unittest \
        ghsched_placement.tests.features.rebalance.test_watcher
}

part_pairs() {
    stage 'every operation with every fault' 120 \
        bash tools/soak.sh --pairs --minutes 90
}

part_soak() {
    stage 'soak' $((minutes + 30)) bash tools/soak.sh --minutes "$minutes"
}

part_blame() {
    stage 'who disturbs a server, and killed proofs' 60 \
        "$VENV/bin/python" -W ignore tools/judge/blame/blame_judge.py
}

part_sid() {
    stage 'guest nodes for devices, QEMU and libvirt of Debian sid' 60 \
        bash tools/judge/device_cells/judge.sh
}

part_tenants() {
    local telemetry=$GHSCHED_HOME/telemetry
    install_packages bindep.txt telemetry
    stage 'Aetos, Ceilometer, Gnocchi and CloudKitty' 10 bash -c \
        'python3 -m venv "$0" && "$0/bin/pip" install -q \
        aetos ceilometer "gnocchi[mysql]" cloudkitty' "$telemetry" || return
    stage 'what tenants see, what is metered' 10 \
        env GHSCHED_TELEMETRY="$telemetry" "$VENV/bin/python" -W ignore \
        -m testtools.run \
        ghsched_nova.tests.functional.test_prometheus \
        ghsched_placement.tests.features.metering.test_metering \
        ghsched_nova.tests.functional.test_metering_storage
}

part_vnode() {
    stage 'interrupts of a VF' 20 bash tools/vnode interrupts
    if stage 'virtual compute node' 20 bash tools/vnode up; then
        stage 'end-to-end checks of VFs' 20 bash tools/e2e.sh --vfs \
            providers restart pair auto refused
        stage 'tempest with VFs' 20 bash tools/tempest.sh --vfs
        stage 'a guest that moves between nodes, memory of both' 20 \
            bash tools/e2e.sh --vfs move_node numa_locality
        stage 'busy guests that are given a node each' 30 \
            bash tools/e2e.sh --vfs two_busy
        stage 'traffic of a guest whose VF comes and goes' 40 \
            bash tools/e2e.sh --vfs bond
    fi
}

# A stage that fails is counted, and the next one begins.
install_packages bindep.txt test
ensure_venv
set +e
. tools/stages.sh
start_from_nothing
for part; do
    "part_$part"
done
count_stages
