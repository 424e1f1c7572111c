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

# The repairs of Nova end by themselves: a copy of the installed Nova gets all
# patches of this directory. None of the repairs that they make unnecessary is
# applied there, and functional tests of moves have to pass.
#
# usage: tools/upstream/patched.sh

set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
show_help "$0" "$@"

TREE=$GHSCHED_HOME/upstream/patched
# What servers keep and give back when a move of theirs fails. Tests that read
# the log or the answer of a repair are not among them.
migrating=evacuated.MigratingTest.test
TESTS=(
    moves
    rolled_back
    evacuated.EvacuatedTest
    evacuated.RefusedTest
    "$migrating"_late_rollback_leaves_it_alone
    "$migrating"_its_old_host_does_not_migrate_it_when_it_is_back
    failed_build.LostSaveTest
)

copy_nova() {
    rm -rf "$TREE"
    mkdir -p "$TREE"
    cp -r "$("$VENV/bin/python" -c 'import nova; print(nova.__path__[0])')" \
        "$TREE/nova"
}

apply_patches() {
    local patch
    for patch in "$GHSCHED_TOP"/tools/upstream/nova/*.patch; do
        (cd "$TREE" && git apply --exclude='nova/tests/*' "$patch") || return
    done
}

# with_patches PROGRAM...: on the copy.
with_patches() {
    (cd "$GHSCHED_TOP" && PYTHONPATH=$TREE:$GHSCHED_TOP \
        PATH=$VENV/bin:$PATH "$VENV/bin/python" -W ignore "$@")
}

# A repair without a patch is one that Nova has fixed in part.
no_repair_is_applied() {
    with_patches - << 'EOF'
from ghsched_nova.nova_fixes import rows, table
from ghsched_nova.nova_seams import shared
shared.config()([], project='nova', default_config_files=[])
applied = [fix.name for fix in rows.FIXES if fix.fixed_source
           and table.get_local_fix_state(fix).applied]
raise SystemExit(', '.join(applied) or 0)
EOF
}

tests_pass() {
    with_patches -m testtools.run \
        "${TESTS[@]/#/ghsched_nova.tests.functional.test_}"
}

ensure_venv
heading 'Nova with all patches'
step "copy of the installed Nova in $TREE" copy_nova
step 'patches' apply_patches
step 'no repair is applied' no_repair_is_applied
step 'functional tests of moves' tests_pass
