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

# Every test that needs no cloud, from a fresh clone on Debian 12: installs
# what is missing, then style and type checks, unit tests, functional tests
# (with the simulated host), documentation, packages. The last line counts
# tests and checks; the exit status is that of all of it.
#
# Of each exhaustive test one eighth runs, another one at each commit;
# GHSCHED_SAMPLE=all runs the whole, as tools/nightly.sh does.
#
# usage: tools/test.sh [--release NUMBER | --nova DIRECTORY] [PART]...
#   PART  checks, unit, functional, docs, packages; all when none is named.
#         lab: tests of the emulator and of the benchmarks, which run without
#         being named when one of their files has changed since they last
#         passed (tools/lab-tested).
#         threads: functional tests with native threads, which Nova 34 starts
#         with; the others run on eventlet, as Nova's own do
#   --release  with this release of Nova (31 to 34) instead of 34, in an
#         environment of its own: the unit tests, and the functional tests
#         that tools/releases/functional names
#   --nova  with a Nova source tree, unpacked or a git repository (its HEAD),
#         in an environment of its own: the signatures that are relied on, the
#         unit tests, and the same functional tests. The part signatures is
#         for this option only

set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

show_help "$0" "$@"
need_root "$@"
cd "$GHSCHED_TOP"

RESULTS=$GHSCHED_HOME/test
FUNCTIONAL=()
if [ "${1:-}" = --release ]; then
    use_release "${2:-}"
    RESULTS=$RESULTS/$2
    FUNCTIONAL=(--include-list tools/releases/functional)
    shift 2
    [ $# -gt 0 ] || set -- unit functional
fi
if [ "${1:-}" = --nova ]; then
    use_nova "${2:-}"
    RESULTS=$RESULTS/tree
    FUNCTIONAL=(--include-list tools/releases/functional)
    shift 2
    [ $# -gt 0 ] || set -- signatures unit functional
fi
# Functional tests wait, unit tests do not.
WORKERS=${WORKERS:-2}
FUNCTIONAL_WORKERS=${FUNCTIONAL_WORKERS:-$((WORKERS + 1))}
SLOWEST=10
passed=0
failed=0

# Tools keep their caches out of the tree. stestr starts its workers with
# $PYTHON.
tree() {
    env PYTHON="$VENV/bin/python" PATH="$VENV/bin:$PATH" \
        MYPY_CACHE_DIR="$RESULTS/mypy" \
        HYPOTHESIS_STORAGE_DIRECTORY="$RESULTS/hypothesis" "$@"
}

# check TEXT COMMAND...: a step that counts as one test.
check() {
    if step "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
}

# run_tests TEXT DIRECTORY WORKERS [OPTION...]: a step that counts as the tests
# below a directory, those that options of "stestr run" choose.
run_tests() {
    local text=$1 directory=$2 workers=$3 name log rc=0 good bad
    shift 3
    name=${directory//\//-}
    log=$RESULTS/$name.log
    rm -rf "${RESULTS:?}/$name"
    mkdir "$RESULTS/$name"
    step "$text" stestr_to "$log" --repo-url "$RESULTS/$name" \
        --test-path "$directory" run --concurrency "$workers" "$@" || rc=$?
    good=$(total Passed "$log")
    bad=$(total Failed "$log")
    # A run that ends badly without a failed test has failed as a whole.
    [ "$rc" = 0 ] || [ "$bad" != 0 ] || bad=1
    printf '      %s passed, %s failed, %s skipped: %s\n' \
        "$good" "$bad" "$(total Skipped "$log")" "$log"
    [ "$bad" = 0 ] || grep -E '\.\.\. FAILED$' "$log" | sed 's/^/      /' ||
        true
    tree python -m stestr --repo-url "$RESULTS/$name" slowest 2> /dev/null |
        awk -v n="$SLOWEST" '/^ghsched_/ && n-- > 0 {
            printf "      %8.1f s  %s\n", $2, $1 }' || true
    passed=$((passed + good))
    failed=$((failed + bad))
}

stestr_to() {
    local log=$1
    shift
    tree python -m stestr "$@" > "$log" 2>&1 ||
        { tail -n 60 "$log"; return 1; }
}

# total WORD LOG: the number behind a word of stestr's summary.
total() {
    awk -v word="$1:" '$1 == "-" && $2 == word { n = $3 }
        END { print n + 0 }' "$2"
}

# render BUILDER SOURCE NAME: with Sphinx; a warning is an error.
render() {
    rm -rf "${RESULTS:?}/$3" "$RESULTS/$3.trees"
    tree python -m sphinx -W --keep-going -q -b "$1" \
        -d "$RESULTS/$3.trees" "$2" "$RESULTS/$3"
}

set_up() {
    heading 'Set-up'
    install_packages bindep.txt test
    ensure_venv
    [ "$CONSTRAINTS" != /dev/null ] || step 'documentation tools' \
        "$VENV/bin/pip" install -q -r doc/requirements.txt
}

part_checks() {
    local name
    heading 'Style and types'
    for name in flake8 ruff mypy bashate english house sizes tests words; do
        check "$name" tree bash tools/pep8.sh "$name"
    done
    check "what we rely on, in Nova's releases" \
        env PYTHONPATH="$GHSCHED_TOP" "$VENV/bin/python" tools/signatures.py
}

part_signatures() {
    local log=$RESULTS/signatures.log
    heading "Signatures of $NOVA_TREE"
    check 'what we rely on' signatures_to "$log"
    sed 's/^/      /' "$log"
}

signatures_to() {
    PYTHONPATH=$GHSCHED_TOP "$VENV/bin/python" tools/signatures.py \
        --tree "$("$VENV/bin/python" -c \
            'import nova, os; print(os.path.dirname(nova.__path__[0]))')" \
        > "$1" 2>&1
}

part_unit() {
    heading 'Unit tests'
    run_tests 'ghsched_placement' ghsched_placement/tests "$WORKERS"
    run_tests 'ghsched_nova' ghsched_nova/tests/unit "$WORKERS"
}

part_functional() {
    heading 'Functional tests'
    run_tests 'ghsched_nova with Nova, Placement, libvirt, FUSE' \
        ghsched_nova/tests/functional "$FUNCTIONAL_WORKERS" \
        "${FUNCTIONAL[@]}"
}

part_threads() {
    heading 'Functional tests with native threads'
    export OS_NOVA_DISABLE_EVENTLET_PATCHING=true
    run_tests 'ghsched_nova with Nova, Placement, threads' \
        ghsched_nova/tests/functional "$FUNCTIONAL_WORKERS" \
        --include-list tools/releases/functional
    unset OS_NOVA_DISABLE_EVENTLET_PATCHING
}

# lab_key: the hash of what the part lab tests, and of these tests.
lab_key() {
    # shellcheck disable=SC2046
    key_of $(project_files | tr '\0' '\n' | sort |
        grep -E '^(ghsched_nova/(tests/)?lab|tools/(bench|judge))/')
}

part_lab() {
    local before=$failed
    heading 'Emulator and benchmarks'
    run_tests 'ghsched_nova/lab, tools/bench, tools/judge' \
        ghsched_nova/tests/lab "$WORKERS"
    [ "$failed" != "$before" ] || lab_key > tools/lab-tested
}

part_docs() {
    heading 'Documentation'
    check 'manual' render html doc/source doc
    check 'man pages' render man doc/source man
    check 'release notes' render html releasenotes/source releasenotes
    check 'sample configuration' tree oslo-config-generator \
        --config-file etc/ghsched/ghsched-config-generator.conf \
        --output-file "$RESULTS/ghsched.conf.sample"
}

part_packages() {
    heading 'Packages'
    check 'sdist and wheel; wheel, editable and split installs' \
        bash tools/check-install.sh "$VENV/bin/python"
}

begin=$EPOCHREALTIME
cat << EOF
tools/test.sh: about 15 minutes on two quiet cores, and 5 more at the first
time, for Debian packages (bindep.txt) and the Python environment $VENV.
EOF
set_up
mkdir -p "$RESULTS"
: "${GHSCHED_SAMPLE:=$((16#$(git rev-parse --short=8 HEAD 2> /dev/null ||
    echo 0) % 8))}"
export GHSCHED_SAMPLE
if [ $# = 0 ]; then
    set -- checks unit functional docs packages
    [ "$(cat tools/lab-tested 2> /dev/null)" = "$(lab_key)" ] ||
        set -- "$@" lab
fi
for part in "$@"; do
    part_begin=$EPOCHREALTIME
    case $part in
    checks | signatures | unit | functional | threads | lab | docs | \
    packages)
        "part_$part"
        printf '  %-52s%7s s\n' "$part, in all" \
            "$(seconds_since "$part_begin")"
        ;;
    *) die "no such part: $part" ;;
    esac
done
printf '\n%s s\n%d passed, %d failed\n' "$(seconds_since "$begin")" \
    "$passed" "$failed"
[ "$failed" = 0 ]
