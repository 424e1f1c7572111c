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
# with 0, and tempest with failure where all of its tests are skipped. Not part
# of any CI: it takes about 40 minutes and 10 GB.
#
# usage: tools/devstack-run.sh CLONES [BRANCH]
#        tools/devstack-run.sh --grenade CLONES [BRANCH]
#   CLONES  a directory with clones of devstack, glance, keystone, neutron,
#           nova, os-test-images, placement, requirements and tempest, as
#           openstack/nova.git and so on, with their tags, for all to read
#   BRANCH  of devstack and the services (default: master)
#
# --grenade runs grenade.sh, whose clone CLONES must have as well, from BRANCH
# (default: stable/2026.1) to master, and tempest on what was upgraded. There
# are no networks, so that none of grenade's own servers is made.

set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
show_help "$0" "$@"
need_root "$@"

RUN=devstack
if [ "${1:-}" = --grenade ]; then
    RUN=grenade
    shift
fi
CLONES=$(realpath "${1:?which directory has the clones?}")
BRANCH=${2:-master}
[ $RUN = devstack ] || BRANCH=${2:-stable/2026.1}
ROOT=$GHSCHED_HOME/$RUN/$BRANCH
BASE=$GHSCHED_HOME/devstack/debian
LOG=$GHSCHED_HOME/log/$RUN-$(basename "$BRANCH").log

# The user stack of the container reads them. Git leaves some packs for their
# owner only.
hidden=$(find -L "$CLONES" ! -perm -o=r -print -quit)
[ -z "$hidden" ] || die "not for all to read: $hidden"

trap end_container EXIT

# What the container needs of this machine to reach the package registries.
copy_network_settings() {
    local file
    rm -f "$1/etc/resolv.conf"
    for file in etc/resolv.conf etc/pip.conf \
        usr/local/share/ca-certificates; do
        [ ! -e "/$file" ] || cp -rL "/$file" "$1/$(dirname "$file")"
    done
    chroot "$1" update-ca-certificates
}

make_base() {
    local packages=systemd,dbus,sudo,git,python3,python3-venv,iproute2
    rm -rf "$BASE.part"
    mkdir -p "$BASE.part"
    debootstrap --include="$packages,ca-certificates,procps" \
        bookworm "$BASE.part" &&
        copy_network_settings "$BASE.part" &&
        chroot "$BASE.part" useradd -m -d /opt/stack -s /bin/bash stack &&
        chmod 755 "$BASE.part/opt/stack" &&
        echo 'stack ALL=(ALL) NOPASSWD: ALL' \
            > "$BASE.part/etc/sudoers.d/stack" &&
        mv "$BASE.part" "$BASE"
}

# The kernel is not the container's to set up: no sysctl, no iSCSI.
make_root() {
    local iscsid=$ROOT/etc/systemd/system/iscsid.service.d
    rm -rf "$ROOT"
    mkdir -p "$(dirname "$ROOT")"
    cp -a "$BASE" "$ROOT" && mkdir -p "$iscsid" || return
    printf '[Service]\nType=oneshot\nExecStartPre=\nExecStart=\n%s\n' \
        'ExecStart=/bin/true' > "$iscsid/stub.conf"
    chroot "$ROOT" dpkg-divert --local --rename --add /sbin/sysctl || return
    ln -s /bin/true "$ROOT/sbin/sysctl"
    printf '127.0.0.1 localhost %s\n' ghsched-devstack > "$ROOT/etc/hosts"
    echo ghsched-devstack > "$ROOT/etc/hostname"
    # Hundreds of packages, and nothing here has to survive a power failure.
    echo force-unsafe-io > "$ROOT/etc/dpkg/dpkg.cfg.d/unsafe-io"
    # No test looks into a guest, so that its disk may be empty.
    truncate -s 16M "$ROOT/opt/empty.img"
}

boot() {
    SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn -q -D "$ROOT" \
        --register=no --keep-unit -b --capability=all \
        --hostname=ghsched-devstack --resolv-conf=off --console=pipe \
        --system-call-filter='@raw-io @mount @privileged @keyring bpf
            perf_event_open' \
        --bind=/dev/fuse --bind=/dev/net/tun --bind-ro="$CLONES:/gitsrc" \
        --bind-ro="$GHSCHED_TOP:/ghsched" \
        < /dev/null > "$LOG" 2>&1 &
    unit=$!
}

booted() {
    local _
    for _ in {1..200}; do
        within 'systemctl is-system-running | grep -E "running|degraded"' \
            2> /dev/null && return 0
        sleep 1
    done
    return 1
}

# within COMMAND: as the user stack, in the container.
within() {
    nsenter -t "$(machine_init)" -a -- su - stack -c "$1"
}

# The journal of all services is what is left of the container.
end_container() {
    [ -n "$unit" ] || return 0
    within 'sudo journalctl --no-pager' > "${LOG%.log}-journal.log" || true
    end_machine
}

# devstack sets KSM of the kernel, which all of the machine has, and ends where
# it may not.
hide_ksm() {
    within 'cd /sys/kernel/mm/ksm && sudo mount -t tmpfs none .' ||
        [ ! -e /sys/kernel/mm/ksm ]
}

# clone PROJECT BRANCH: what runs in the container, and this tree where the
# plugin's address leads to.
clone() {
    # The clones belong to whoever made them.
    within "sudo git config --system --add safe.directory '*' &&
        sudo git config --system \
            url./opt/stack/ghsched.git.insteadOf \
            https://opendev.org/x/ghsched &&
        git clone -q -b $2 /gitsrc/openstack/$1.git $1 &&
        git clone -q /ghsched ghsched.git &&
        git -C ghsched.git checkout -q -B main"
}

clone_devstack() {
    clone devstack "$BRANCH" || return
    {
        cat "$GHSCHED_TOP/devstack/samples/local.conf.simulated"
        container_conf
    } > "$ROOT/opt/stack/devstack/local.conf"
}

# Grenade has passwords of its own, enables the plugin by its settings, and
# takes some programs of Debian for granted.
clone_grenade() {
    local grenade=$ROOT/opt/stack/grenade
    within 'sudo apt-get update && sudo DEBIAN_FRONTEND=noninteractive \
        apt-get install -y python3-pip rsync screen' &&
        printf '[install]\nbreak-system-packages = true\n' \
            >> "$ROOT/etc/pip.conf" &&
        clone grenade master || return
    {
        grep -v -e PASSWORD -e enable_plugin \
            "$GHSCHED_TOP/devstack/samples/local.conf.simulated"
        container_conf
    } > "$grenade/devstack.local.conf"
    printf '%s\n' GIT_BASE=/gitsrc BASE_DEVSTACK_BRANCH="$BRANCH" \
        RUN_SMOKE=False > "$grenade/localrc"
    echo 'enable_grenade_plugin ghsched https://opendev.org/x/ghsched main' \
        > "$grenade/pluginrc"
    # They need networks.
    rm "$grenade"/projects/*_{neutron,nova}/resources.sh
}

# What a container without a network of its own needs: the API of Neutron, and
# no agent.
container_conf() {
    cat << 'EOF'
GIT_BASE=/gitsrc
HOST_IP=127.0.0.1
SERVICE_HOST=127.0.0.1
LOGFILE=/opt/stack/logs/stack.sh.log
LOG_COLOR=False
API_WORKERS=1
SERVICE_TIMEOUT=600
ENABLED_SERVICES=key,mysql,rabbit,placement-api,placement-client
ENABLED_SERVICES+=,g-api,n-api,n-api-meta,n-cond,n-sch,n-cpu,q-svc,tempest
DOWNLOAD_DEFAULT_IMAGES=False
IMAGE_URLS=file:///opt/empty.img
Q_AGENT=openvswitch
Q_ML2_PLUGIN_MECHANISM_DRIVERS=openvswitch
Q_ML2_PLUGIN_TYPE_DRIVERS=local,flat,vlan,vxlan
Q_ML2_TENANT_NETWORK_TYPE=vxlan
NEUTRON_CREATE_INITIAL_NETWORKS=False
TEMPEST_VENV_UPPER_CONSTRAINTS=$DEST/requirements/upper-constraints.txt
EOF
}

# tempest_run [DIRECTORY]: where devstack has put it.
tempest_run() {
    within "cd ${1:-.}/tempest && .tox/tempest/bin/tempest run \
        --concurrency 1 --regex ^tempest_plugin"
}

# The gate must not be green because nothing ran.
all_skipped() {
    within 'cp tempest/etc/tempest.conf . && sed -i -e \
        "/^\[service_available\]/,/^\[/s/^ghsched *=.*/ghsched = False/" \
        tempest/etc/tempest.conf' || return
    ! tempest_run && within 'mv tempest.conf tempest/etc/'
}

run_devstack() {
    step 'clones and local.conf' clone_devstack
    step 'stack.sh' within 'cd devstack && ./stack.sh'
    step 'tempest' tempest_run
    step 'tempest fails where all tests are skipped' all_skipped
    step 'unstack.sh' within 'cd devstack && ./unstack.sh'
    step 'stack.sh again' within 'cd devstack && ./stack.sh'
    step 'tempest again' tempest_run
    step 'clean.sh' within 'cd devstack && ./clean.sh'
}

run_grenade() {
    step 'clones and local.conf' clone_grenade
    step 'grenade.sh' within 'cd grenade && ./grenade.sh'
    step 'tempest' tempest_run new
    step 'clean.sh' within 'cd new/devstack && ./clean.sh'
}

heading "$RUN $BRANCH"
mkdir -p "$(dirname "$LOG")"
[ -e "$BASE" ] || step 'Debian 12' make_base
step 'root file system' make_root
boot
step 'systemd' booted
step 'no KSM' hide_ksm
if [ $RUN = devstack ]; then
    run_devstack
else
    run_grenade
fi
end_container
rm -rf "$ROOT"
