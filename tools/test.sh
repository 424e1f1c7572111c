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
# usage: tools/test.sh [--release NUMBER | --nova DIRECTORY] [PART]...
#   PART  checks, unit, functional, docs, packages; all when none is named.
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
WORKERS=${WORKERS:-2}
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

# run_tests TEXT DIRECTORY [OPTION...]: a step that counts as the tests below a
# directory, those that options of "stestr run" choose.
run_tests() {
    local text=$1 directory=$2 name log rc=0 good bad
    shift 2
    name=${directory//\//-}
    log=$RESULTS/$name.log
    rm -rf "${RESULTS:?}/$name"
    mkdir "$RESULTS/$name"
    step "$text" stestr_to "$log" --repo-url "$RESULTS/$name" \
        --test-path "$directory" run "$@" || rc=$?
    good=$(total Passed "$log")
    bad=$(total Failed "$log")
    # A run that ends badly without a failed test has failed as a whole.
    [ "$rc" = 0 ] || [ "$bad" != 0 ] || bad=1
    printf '      %s passed, %s failed, %s skipped: %s\n' \
        "$good" "$bad" "$(total Skipped "$log")" "$log"
    [ "$bad" = 0 ] || grep -E '\.\.\. FAILED$' "$log" | sed 's/^/      /' ||
        true
    passed=$((passed + good))
    failed=$((failed + bad))
}

stestr_to() {
    local log=$1
    shift
    tree python -m stestr "$@" --concurrency "$WORKERS" > "$log" 2>&1 ||
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
    for name in flake8 ruff mypy bashate english sizes tests words; do
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
    run_tests 'ghsched_placement' ghsched_placement/tests
    run_tests 'ghsched_nova' ghsched_nova/tests/unit
}

part_functional() {
    heading 'Functional tests'
    run_tests 'ghsched_nova with Nova, Placement, libvirt, FUSE' \
        ghsched_nova/tests/functional "${FUNCTIONAL[@]}"
}

part_threads() {
    heading 'Functional tests with native threads'
    export OS_NOVA_DISABLE_EVENTLET_PATCHING=true
    run_tests 'ghsched_nova with Nova, Placement, threads' \
        ghsched_nova/tests/functional \
        --include-list tools/releases/functional
    unset OS_NOVA_DISABLE_EVENTLET_PATCHING
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
set_up
mkdir -p "$RESULTS"
[ $# -gt 0 ] || set -- checks unit functional docs packages
for part in "$@"; do
    case $part in
    checks | signatures | unit | functional | threads | docs | packages)
        "part_$part"
        ;;
    *) die "no such part: $part" ;;
    esac
done
printf '\n%s s\n%d passed, %d failed\n' "$(seconds_since "$begin")" \
    "$passed" "$failed"
[ "$failed" = 0 ]
