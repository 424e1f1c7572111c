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

# The unit tests, or those that a pattern chooses:
# tools/unit-tests.sh [OPTION of "stestr run"]... [PATTERN]
# stestr discovers below one directory in one run, and ends with an error when
# a pattern matches no test of it; here one of the directories must have some.
# One that the pattern names no test of is left out.

set -u
cd "$(dirname "$0")/.." || exit
log=$(mktemp)
trap 'rm -f "$log"' EXIT
combine=()
failed=0
directories='ghsched_placement/tests ghsched_nova/tests/unit'
case ${*: -1} in
ghsched_placement.*) directories=ghsched_placement/tests ;;
ghsched_nova.*) directories=ghsched_nova/tests/unit ;;
esac
for directory in $directories; do
    stestr --test-path $directory run "${combine[@]}" "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    if [ "$status" = 0 ]; then
        combine=(--combine)
    elif ! grep -q "The specified regex doesn't match with anything" "$log"
    then
        combine=(--combine)
        failed=1
    fi
done
if [ ${#combine[@]} = 0 ]; then
    echo "$0: no unit test matches: $*" >&2
    failed=1
fi
exit $failed
