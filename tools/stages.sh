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

# Stages of a long run, and their count; to be sourced by bash.

passed=0
failed=0
running=
SECONDS_OF_STAGES=
LOG=$(mktemp)
FAILURES=$(mktemp)

tear_down() {
    [ -z "$running" ] || kill "$running"
    rm -f "$LOG" "$FAILURES"
    bash tools/cloud down
}
trap tear_down EXIT
# A signal ends the script, and with it comes the tear-down.
trap 'exit 1' HUP INT TERM

# stage TEXT MINUTES COMMAND...: count what the command's own last count says;
# a command that counts nothing is one test. One that takes longer has failed.
stage() {
    local text=$1 minutes=$2 rc counts good=0 bad=0 begin=$EPOCHREALTIME
    shift 2
    printf '\n#### %s\n' "$text"
    # A signal to this script is answered while it waits, and not while a
    # command runs in the foreground.
    : > "$LOG"
    timeout --kill-after=30 "${minutes}m" "$@" >> "$LOG" 2>&1 &
    running=$!
    tail -n +1 -f --pid="$running" "$LOG" &
    wait "$running"
    rc=$?
    running=
    wait
    [ "$rc" != 124 ] ||
        echo "FAIL  not done after $minutes minutes" | tee -a "$LOG"
    counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$LOG" | tail -n 1)
    if [ -n "$counts" ]; then
        read -r good _ bad _ <<< "$counts"
    elif [ "$rc" = 0 ]; then
        good=1
    fi
    [ "$rc" = 0 ] || [ "$bad" != 0 ] || bad=1
    [ "$bad" = 0 ] || {
        printf '#### %s: FAILED\n' "$text"
        grep -A 30 FAIL "$LOG" | tail -n 120
    } | tee -a "$FAILURES"
    passed=$((passed + good))
    failed=$((failed + bad))
    took=$(awk -v a="$begin" -v b="$EPOCHREALTIME" \
        'BEGIN { printf "%.0f", b - a }')
    printf '#### %s: %s s\n' "$text" "$took"
    SECONDS_OF_STAGES+="$(printf '%6s s  %s' "$took" "$text")"$'\n'
    [ "$bad" = 0 ]
}

# start_from_nothing: a guest that somebody left running would take what the
# checks count on.
start_from_nothing() {
    [ ! -d "${GHSCHED_HOME:-/var/lib/ghsched}/state" ] ||
        stage 'a cloud of before is removed' 15 bash tools/cloud wipe
}

# count_stages: take the cloud down and print the count; the exit status is
# that of all stages.
count_stages() {
    stage 'tear-down' 5 bash tools/cloud down
    # Who sees only the end of the output sees what failed.
    [ "$failed" = 0 ] || { printf '\n#### what failed\n'; cat "$FAILURES"; }
    printf '\n%s' "$SECONDS_OF_STAGES"
    printf '\n%d passed, %d failed\n' "$passed" "$failed"
    trap 'rm -f "$LOG" "$FAILURES"' EXIT
    [ "$failed" = 0 ]
}
