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

# Run ghsched's tempest tests against the cloud of tools/cloud, which must be
# up. The last line counts the tests.
#
# usage: tools/tempest.sh [--vfs | --dedicated] [REGEX]
#   --vfs        the tests of virtual functions, on the virtual compute node
#                (tools/vnode), which is started if needed
#   --dedicated  the tests of dedicated CPUs, on hosts that have some
#
# CONCURRENCY tests run at once, 2 by default, with --vfs 1.

set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
show_help "$0" "$@"
need_root "$@"

# What tempest is to know of the cloud: with or without virtual functions.
tests='^tempest_plugin\.'
image_name=ghsched-guest
seconds=240
settings=host_settings
concurrency=${CONCURRENCY:-2}
dedicated=false
# Options of nova-compute that are off by default: group, name, value.
options=(ghsched reserved_bandwidth '*:0' ghsched bandwidth_bursts 0:20,1:20
    ghsched realtime_shared_percent 50)
if [ "${1:-}" = --dedicated ]; then
    shift
    tests+='.*\.DedicatedCpusTest\.'
    dedicated=true
    options=(compute cpu_dedicated_set 0 compute cpu_shared_set 1)
elif [ "${1:-}" = --vfs ]; then
    shift
    tests+='.*\.test_virtual_functions\.'
    image_name=ghsched-nested
    # The guest is emulated on an emulated host.
    seconds=600
    settings=vf_settings
    concurrency=1
fi
REGEX=${1:-$tests}
WORKSPACE=$GHSCHED_HOME/tempest
LOG=$GHSCHED_HOME/log/tempest-run.log

credentials() {
    local lines
    lines=$("$GHSCHED_TOP/tools/cloud" openrc) || return
    eval "$lines"
}

# A fresh workspace; its list of workspaces is its own too, not the user's.
make_workspace() {
    rm -rf "$WORKSPACE"
    mkdir -p "$WORKSPACE"
    "$VENV/bin/tempest" init --workspace-path "$WORKSPACE/list.yaml" \
        "$WORKSPACE/cloud" &&
        write_config > "$WORKSPACE/cloud/etc/tempest.conf"
}

write_config() {
    local image flavor hosts several=false
    hosts=$("$VENV/bin/openstack" hypervisor list -f value -c ID | wc -l) ||
        return
    [ "$hosts" -lt 2 ] || several=true
    image=$("$VENV/bin/openstack" image list --name "$image_name" \
        -f value -c ID) || return
    flavor=$("$VENV/bin/openstack" flavor show plain -f value -c id) || return
    [ -n "$image" ] || { echo 'the cloud has no guest image' >&2; return 1; }
    cat << EOF
[DEFAULT]
log_dir = $WORKSPACE/cloud/logs
log_file = tempest.log

[oslo_concurrency]
lock_path = $WORKSPACE/cloud/tempest_lock

[auth]
use_dynamic_credentials = true
create_isolated_networks = false
admin_username = $OS_USERNAME
admin_password = $OS_PASSWORD
admin_project_name = $OS_PROJECT_NAME
admin_domain_name = Default
admin_user_domain_name = Default

[identity]
uri_v3 = $OS_AUTH_URL
auth_version = v3
region = $OS_REGION_NAME

[service_available]
ghsched = true
nova = true
glance = true
neutron = false
cinder = false
swift = false
horizon = false

[compute]
image_ref = $image
image_ref_alt = $image
flavor_ref = $flavor
flavor_ref_alt = $flavor
max_microversion = latest
min_compute_nodes = $hosts
build_interval = 1
build_timeout = $seconds

[compute-feature-enabled]
resize = true
live_migration = $several

[placement]
max_microversion = latest

[validation]
run_validation = false

[ghsched]
EOF
    "$settings"
}

# for_each_option COMMAND: with group, name and value of each.
for_each_option() {
    local index
    for ((index = 0; index < ${#options[@]}; index += 3)); do
        "$1" "${options[@]:index:3}" || return
    done
    "$GHSCHED_TOP/tools/cloud" restart nova-compute
}

set_option() {
    "$GHSCHED_TOP/tools/cloud" set-option "$@"
}

unset_option() {
    "$GHSCHED_TOP/tools/cloud" unset-option "$1" "$2"
}

# What the hosts offer, as Placement has it.
capabilities() {
    {
        "$VENV/bin/openstack" --os-placement-api-version 1.7 \
            trait list --associated -f value -c name &&
            "$VENV/bin/openstack" --os-placement-api-version 1.7 \
                resource class list -f value -c name
    } | sed -n 's/^CUSTOM_GHSCHED_//p; t; s/^CUSTOM_//p' |
        paste -s -d ,
}

host_settings() {
    local offered
    offered=$(capabilities) || return
    cat << EOF
host_command = $GHSCHED_TOP/tools/cloud exec --host {host} --
capabilities = $offered
cli_dir = $VENV/bin
console_timeout = $seconds
flavor_ram = 192
live_change = true
dedicated_cpus = $dedicated
EOF
}

vf_settings() {
    local network
    network=$("$VENV/bin/openstack" network show vfs -f value -c id) || return
    cat << EOF
host_command = $GHSCHED_TOP/tools/vnode exec --
flavor_ram = 128
vf_alias = vf
vf_network = $network
console_timeout = $seconds
capabilities = $(capabilities)
EOF
}

run() {
    cd "$WORKSPACE/cloud"
    # The tests of this tree, whatever the environment has.
    PYTHONPATH=$GHSCHED_TOP PYTHON="$VENV/bin/python" \
        PATH="$VENV/bin:$PATH" "$VENV/bin/tempest" run \
        --regex "$REGEX" --concurrency "$concurrency" > "$LOG" 2>&1 ||
        { tail -n 60 "$LOG"; return 1; }
}

total() {
    awk -v word="$1:" '$1 == "-" && $2 == word { n = $3 }
        END { print n + 0 }' "$LOG"
}

# tempest.conf holds the admin's password.
umask 077
[ -x "$VENV/bin/tempest" ] ||
    die "nothing is set up in $GHSCHED_HOME; start with: tools/cloud up"
if [ "$settings" = vf_settings ]; then
    "$GHSCHED_TOP/tools/vnode" up
elif [ -e "$GHSCHED_HOME/run/vnode.pid" ]; then
    # A second host would take guests that are looked for on the first.
    "$GHSCHED_TOP/tools/vnode" down
fi
credentials || die 'the cloud gave no credentials'
mkdir -p "$(dirname "$LOG")"
rm -f "$LOG"
heading 'Tempest'
rc=0
if [ "$settings" = host_settings ]; then
    step 'options of nova-compute' for_each_option set_option
    trap 'step "options taken back" for_each_option unset_option' EXIT
fi
step 'workspace and tempest.conf' make_workspace
step 'tests of the plugin' run || rc=$?
passed=$(total Passed)
failed=$(total Failed)
[ "$rc" = 0 ] || [ "$failed" != 0 ] || failed=1
grep -E '\.\.\. (ok|FAILED|SKIPPED)' "$LOG" | sed 's/^/      /' || true
# Skipped tests prove nothing: a run without a single pass has failed.
[ "$passed" != 0 ] || [ "$failed" != 0 ] || failed=1
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
