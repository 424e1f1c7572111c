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

# Run devstack with the ghsched plugin for real, in a container of Debian 12
# with systemd: stack.sh, tempest, unstack.sh, stack.sh, clean.sh. Each must end
# with 0. Not part of any CI: it takes about 40 minutes and 20 GB.
#
# usage: tools/devstack-run.sh CLONES [BRANCH]
#   CLONES  a directory with clones of the projects that devstack asks for, as
#           openstack/nova.git and so on, with their tags
#   BRANCH  of devstack and the services (default: master)

set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
show_help "$0" "$@"
need_root "$@"

CLONES=$(realpath "${1:?which directory has the clones?}")
BRANCH=${2:-master}
ROOT=$GHSCHED_HOME/devstack/$BRANCH
unit=

end_container() {
    [ -z "$unit" ] || kill "$unit" 2> /dev/null || true
}
trap end_container EXIT

make_root() {
    mkdir -p "$ROOT"
    debootstrap --include=systemd,dbus,sudo,git,python3,python3-venv,iproute2 \
        bookworm "$ROOT" &&
        chroot "$ROOT" useradd -m -d /opt/stack -s /bin/bash stack &&
        chmod 755 "$ROOT/opt/stack" &&
        echo 'stack ALL=(ALL) NOPASSWD: ALL' > "$ROOT/etc/sudoers.d/stack"
}

boot() {
    SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn -q -D "$ROOT" \
        --register=no --keep-unit -b --capability=all \
        --system-call-filter='@raw-io @mount @privileged @keyring bpf \
perf_event_open' \
        --bind=/dev/fuse --bind=/dev/net/tun --bind-ro="$CLONES:/gitsrc" \
        --bind-ro="$GHSCHED_TOP:/ghsched" &
    unit=$!
    sleep 20
}

# within COMMAND: as the user stack, in the container.
within() {
    local leader
    leader=$(pgrep -P "$unit" | head -n 1)
    nsenter -t "$leader" -a -- su - stack -c "$1"
}

# A branch of the container's own, of the tree as it is.
clone() {
    within "git config --global --add safe.directory '*' &&
        git clone -q -b $BRANCH /gitsrc/openstack/devstack.git devstack &&
        git clone -q /ghsched ghsched.git"
    {
        sed "s|https://opendev.org/x/ghsched|/opt/stack/ghsched.git|" \
            "$GHSCHED_TOP/devstack/samples/local.conf.simulated"
        echo 'GIT_BASE=/gitsrc'
        echo 'HOST_IP=127.0.0.1'
        echo 'LOGFILE=/opt/stack/logs/stack.sh.log'
        echo 'ENABLED_SERVICES=key,mysql,rabbit,placement-api'
        echo 'ENABLED_SERVICES+=,placement-client,g-api,n-api,n-api-meta'
        echo 'ENABLED_SERVICES+=,n-cond,n-sch,n-cpu,q-svc,tempest'
        echo 'Q_AGENT=openvswitch'
        echo 'Q_ML2_PLUGIN_MECHANISM_DRIVERS=openvswitch'
        echo 'NEUTRON_CREATE_INITIAL_NETWORKS=False'
    } > "$ROOT/opt/stack/devstack/local.conf"
}

# The kernel of the machine is not the container's to set up.
stub() {
    within 'sudo ln -sf /bin/true /usr/local/sbin/sysctl'
}

tempest_run() {
    within 'cd tempest && tox -q -e all -- ^tempest_plugin'
}

heading "devstack $BRANCH"
[ -e "$ROOT/etc/os-release" ] || step 'root file system' make_root
boot
step 'clones and local.conf' clone
step 'what a container cannot do' stub
step 'stack.sh' within 'cd devstack && ./stack.sh'
step 'tempest' tempest_run
step 'unstack.sh' within 'cd devstack && ./unstack.sh'
step 'stack.sh again' within 'cd devstack && ./stack.sh'
step 'clean.sh' within 'cd devstack && ./clean.sh'
