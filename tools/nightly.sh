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

# What takes too long for .ci/run: every release of Nova, properties with new
# examples, random hosts, a hundred moves that are killed, benchmarks, all moves
# between two hosts, Watcher, and a soak.
# The last line counts.
#
# usage: tools/nightly.sh [MINUTES]    of the soak, 180 by default

set -u
cd "$(dirname "$0")/.." || exit
case ${1:-180} in
*[!0-9]*) sed -n '/^# usage/p' "$0"; exit 2 ;;
esac
. tools/stages.sh
minutes=${1:-180}

start_from_nothing
for release in 31 32 33; do
    stage "Nova $release" 60 bash tools/test.sh --release "$release"
done
stage 'properties, new examples' 60 \
    env GHSCHED_HYPOTHESIS=search GHSCHED_TEST_DEADLINE=1 \
    bash tools/test.sh unit
stage 'host engine, random hosts' 30 \
    "${GHSCHED_HOME:-/var/lib/ghsched}/venv/bin/python" tools/fuzz_engine.py
stage 'moves inside a host, killed' 60 \
    env GHSCHED_KILLED_MOVES=100 OS_TEST_TIMEOUT=3000 \
    "${GHSCHED_HOME:-/var/lib/ghsched}/venv/bin/python" -m stestr \
    --test-path ghsched_nova/tests/functional run moves_that_are_killed
for bench in tools/bench/*_bench.py; do
    stage "$(basename "$bench" .py)" 30 \
        "${GHSCHED_HOME:-/var/lib/ghsched}/venv/bin/python" "$bench"
done
stage 'moves between two hosts' 90 bash tools/e2e.sh --moves
stage 'moves of guests that share groups' 90 \
    bash tools/e2e.sh --moves --sharing
stage 'rebalancing by Watcher' 30 bash tools/e2e.sh --watcher
stage 'soak' $((minutes + 30)) bash tools/soak.sh --minutes "$minutes"
if stage 'virtual compute node' 20 bash tools/vnode up; then
    stage 'a guest that moves between nodes' 20 \
        bash tools/e2e.sh --vfs move_node
fi
count_stages
