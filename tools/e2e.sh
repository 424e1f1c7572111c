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


# End-to-end checks on the all-in-one cloud, which is brought up if needed.
#
# usage: tools/e2e.sh [TEST...]          all tests by default
#        tools/e2e.sh --vfs [TEST...]    those of the virtual compute node
#        tools/e2e.sh --moves [--sharing] [TEST...]
#                                        moves between two hosts; with guests
#                                        that share control groups
#        tools/e2e.sh --watcher [TEST...]
#                                        rebalancing between two hosts
#        tools/e2e.sh --upgrade REVISION [TEST...]
#                                        the second host with an older release
#                                        of ghsched, a revision of git's
#        tools/e2e.sh --bench [TEST...]  ghsched-bench on guests of the cloud
#        tools/e2e.sh --systemd [TEST...]
#                                        a guest with systemd and ghsched-guest

set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
show_help "$0" "$@"
# The checks count on all of the emulated memory's bandwidth.
export GHSCHED_RESERVED_BANDWIDTH='*:0'

# check_names FILES NAME...: before anything is started.
check_names() {
    local files=$1 name known
    shift
    # shellcheck disable=SC2086
    known=$(sed -n 's/^    def test_\([a-z0-9_]*\)(.*/\1/p' $files)
    for name; do
        grep -qxF -- "$name" <<< "$known" ||
            die "no test $name; there are" $known
    done
}

# bring_up [OPTION...]: the cloud alone; a second host would take guests that
# are looked for on the first.
bring_up() {
    need_root "${arguments[@]}"
    [ ! -e "$GHSCHED_HOME/run/vnode.pid" ] ||
        "$GHSCHED_TOP/tools/vnode" down
    "$GHSCHED_TOP/tools/cloud" up "$@"
}
arguments=("$@")

if [ "${1:-}" = --vfs ]; then
    tests=$GHSCHED_TOP/tools/cloud.d/e2e_vfs.py
    check_names "${tests%.py}*.py" "${@:2}"
    need_root "$@"
    # Without names, all of them are run.
    [[ $# -gt 1 && " $* " != *' bond '* ]] ||
        "$GHSCHED_TOP/tools/vnode" build-bond
    "$GHSCHED_TOP/tools/vnode" up
    exec "$VENV/bin/python" "$tests" "${@:2}"
fi
if [ "${1:-}" = --moves ]; then
    tests=$GHSCHED_TOP/tools/cloud.d/e2e_moves.py
    names=("${@:2}")
    [ "${names[0]:-}" != --sharing ] || names=("${names[@]:1}")
    check_names "${tests%s.py}_*.py" "${names[@]}"
    bring_up --hosts 2
    exec "$VENV/bin/python" "$tests" "${@:2}"
fi
if [ "${1:-}" = --watcher ]; then
    tests=$GHSCHED_TOP/tools/cloud.d/e2e_watcher.py
    check_names "$tests" "${@:2}"
    bring_up --hosts 2 --watcher
    exec "$VENV/bin/python" "$tests" "${@:2}"
fi
if [ "${1:-}" = --upgrade ]; then
    [ $# -gt 1 ] || die 'which revision is the older release?'
    tests=$GHSCHED_TOP/tools/cloud.d/e2e_upgrade.py
    check_names "$tests" "${@:3}"
    bring_up --hosts 2 --older "$2"
    exec "$VENV/bin/python" "$tests" "${@:3}"
fi
if [ "${1:-}" = --bench ]; then
    tests=$GHSCHED_TOP/tools/cloud.d/e2e_bench.py
    check_names "$tests" "${@:2}"
    need_root "$@"
    install_packages "$GHSCHED_TOP/bindep.txt" demo guests bench
    parts=$GHSCHED_TOP/tools/cloud.d
    cached "$GHSCHED_HOME/cache/bench-guest" \
        'the image of guests for benchmarks' \
        "$(key_of "$parts"/bench/* \
        "$parts"/vnode/{debian.sh,root.sh,node-initrd-init})" \
        "$parts/bench/image.sh"
    bring_up
    exec "$VENV/bin/python" "$tests" "${@:2}"
fi
if [ "${1:-}" = --systemd ]; then
    tests=$GHSCHED_TOP/tools/cloud.d/e2e_systemd.py
    check_names "$tests" "${@:2}"
    need_root "$@"
    install_packages "$GHSCHED_TOP/bindep.txt" demo guests
    parts=$GHSCHED_TOP/tools/cloud.d
    cached "$GHSCHED_HOME/cache/systemd-guest" \
        'the image of a guest with systemd' \
        "$(key_of "$parts"/systemd_guest/* "$GHSCHED_TOP"/etc/ghsched/guest/* \
        "$parts"/vnode/{debian.sh,root.sh,node-initrd-init})" \
        "$parts/systemd_guest/image.sh"
    # Both vCPUs of a guest are on one NUMA node.
    bring_up --hosts 2 --nodes 1,1
    exec "$VENV/bin/python" "$tests" "${@:2}"
fi
tests=$GHSCHED_TOP/tools/cloud.d/e2e.py
check_names "$(printf "${tests%.py}_%s.py " placing policy scheduling \
    failures groups limits busy intel)" "$@"
bring_up
exec "$VENV/bin/python" "$tests" "$@"
