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


# Random operations on guests with random faults, on the all-in-one cloud with
# two hosts, which is brought up if needed. After each step all records of the
# guests must agree; the first disagreement ends it, with all logs collected.
#
# usage: tools/soak.sh [--pairs] [--moves] [--seed N] [--minutes M] [--steps K]
#
# It ends after 60 minutes by default, or after K steps. A step is an operation
# on a guest; up to eight are done at the same time.
#
# --moves  begins with a live migration, one that is cut off and a resize, on
#          the same cloud
# --pairs  every operation with every fault instead of random ones, as long as
#          there is time. What has been tried is kept in
#          GHSCHED_HOME/soak-pairs.json, and is not tried again.

set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
show_help "$0" "$@"
# The checks count on all of the emulated memory's bandwidth.
export GHSCHED_RESERVED_BANDWIDTH='*:0'
need_root "$@"
[ ! -e "$GHSCHED_HOME/run/vnode.pid" ] || "$GHSCHED_TOP/tools/vnode" down
"$GHSCHED_TOP/tools/cloud" up --hosts 2
program=soak.py
if [ "${1:-}" = --pairs ]; then
    program=soak_pairs.py
    shift
fi
exec "$VENV/bin/python" "$GHSCHED_TOP/tools/cloud.d/$program" "$@"
