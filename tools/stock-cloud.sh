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

# Install ghsched on a stock cloud and go back, timed: a machine of Debian 13
# (a container with systemd and without network) gets the distribution's Nova,
# Placement, Neutron, Keystone, Glance, RabbitMQ and MariaDB and boots a guest.
# Then the commands of doc/source/install/packages.rst are run with the Debian
# packages of tools/release.sh, a guest with guaranteed bandwidth is booted on
# simulated hardware, and the commands of operators/going-back.rst are
# run. Afterwards files, units, packages, control groups, Placement and Nova's
# tables must be as before, and the first guest must have run all the time.
# It takes half an hour, 6 GB of disk and 4 GB of memory.
#
# usage: tools/stock-cloud.sh [--keep] DIRECTORY
#   DIRECTORY  with the Debian packages of tools/release.sh --deb
#   --keep     after a failure wait for a line on stdin before the machine ends

set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
show_help "$0" "$@"
need_root "$@"

KEEP=
if [ "${1:-}" = --keep ]; then
    KEEP=1
    shift
fi
PACKAGES=$(realpath "${1:?name the directory with the Debian packages}")
STOCK=$GHSCHED_HOME/stock-cloud
BASE=$STOCK/debian
ROOT=$STOCK/root
LOG=$GHSCHED_HOME/log/stock-cloud.log
# Seconds from the stock cloud to the first guest with a guarantee, and
# commands on each node.
LIMIT_S=600
LIMIT_COMMANDS=3

trap end_machine EXIT

NSPAWN=(env SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn -q --keep-unit
    --register=no --resolv-conf=off --hostname=stock-cloud --console=pipe
    -E DEBIAN_FRONTEND=noninteractive)

make_base() {
    local root=$BASE.part
    rm -rf "$root"
    mkdir -p "$root"
    debootstrap --variant=minbase --include=ca-certificates trixie \
        "$root" || return
    rm -f "$root/etc/resolv.conf"
    cp -L /etc/resolv.conf "$root/etc"
    echo '127.0.0.1 localhost stock-cloud' > "$root/etc/hosts"
    echo stock-cloud > "$root/etc/hostname"
    # No service is started while packages are installed.
    printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
    chmod 755 "$root/usr/sbin/policy-rc.d"
    printf '%s\n' 'APT::Install-Recommends "false";' \
        'APT::Get::Assume-Yes "true";' 'Dpkg::Options:: "--force-unsafe-io";' \
        > "$root/etc/apt/apt.conf.d/stock-cloud"
    "${NSPAWN[@]}" -D "$root" sh -c 'apt-get update && apt-get install \
        crudini curl dbus fuse3 glance iproute2 keystone \
        libvirt-daemon-system mariadb-server neutron-server nova-api \
        nova-compute nova-compute-kvm nova-conductor nova-scheduler \
        placement-api procps python3-openstackclient \
        python3-osc-placement qemu-system-x86 rabbitmq-server systemd \
        systemd-sysv' || return
    rm "$root/usr/sbin/policy-rc.d"
    mv "$root" "$BASE"
}

# The stand-in for hardware: units and a library of the emulator.
make_root() {
    local units=$ROOT/etc/systemd/system
    rm -rf "$ROOT"
    cp -a "$BASE" "$ROOT" || return
    mkdir -p "$ROOT"/{lab,guest,packages,opt/hardware} \
        "$units/libvirtd.service.d" "$units/multi-user.target.wants"
    cp "$VENV"/lib/python3*/site-packages/mfusepy.py "$ROOT/opt/hardware"
    cp "$GHSCHED_TOP/tools/stock-cloud.d/simulated-hardware.service" "$units"
    ln -s ../simulated-hardware.service "$units/multi-user.target.wants"
    printf '[Service]\nEnvironment=PATH=%s\n' \
        /var/lib/simulated-host/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        > "$units/libvirtd.service.d/hardware.conf"
    printf '%s\n' 'security_driver = "none"' 'stdio_handler = "file"' \
        'cgroup_controllers = [ ]' 'namespaces = [ ]' 'user = "root"' \
        'group = "root"' >> "$ROOT/etc/libvirt/qemu.conf"
    # "cloud set-up" starts the services when they have a configuration.
    (cd "$units/multi-user.target.wants" && rm -f glance-*.service \
        keystone.service neutron-*.service nova-*.service placement-*.service)
    # The machine has no network: what the packages need is fetched before.
    "${NSPAWN[@]}" -D "$ROOT" --bind-ro="$PACKAGES:/packages" bash -c '
        apt-get update && apt-get install --download-only \
            /packages/python3-ghsched_*.deb \
            /packages/ghsched-{api,client,compute,scheduler}_*.deb'
}

boot() {
    "${NSPAWN[@]}" -D "$ROOT" -b --capability=all --private-network \
        --system-call-filter='@raw-io @mount @privileged @keyring bpf
            perf_event_open' \
        --bind=/dev/fuse --bind-ro="$GHSCHED_TOP:/lab" \
        --bind-ro="$GHSCHED_HOME/cache/guest:/guest" \
        --bind-ro="$PACKAGES:/packages" > "$LOG" 2>&1 < /dev/null &
    unit=$!
    within 'for i in $(seq 200); do
        systemctl is-system-running | grep -E "running|degraded" && exit
        sleep 1; done; exit 1'
}

# within COMMAND: as root, on the machine.
within() {
    local _
    for _ in {1..100}; do
        machine_init > /dev/null && break
        sleep 0.2
    done
    nsenter -t "$(machine_init)" -a -- env -i HOME=/root LANG=C.UTF-8 \
        PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
        bash -c "cd / && $1" < /dev/null
}

cloud() {
    within "/lab/tools/stock-cloud.d/cloud $*"
}

# commands_of PAGE TITLE: root's commands in a section of the manual.
commands_of() {
    awk -v title="$2" '
        /^[-=]+$/ && length($0) == length(before) { on = before == title }
        { before = $0 }
        on && sub(/^   # /, "")' "$GHSCHED_TOP/doc/source/$1"
}

# run_commands DIRECTORY: run each line of stdin on the machine.
run_commands() {
    local command lines
    mapfile -t lines
    [ ${#lines[@]} -gt 0 ] || return
    for command in "${lines[@]}"; do
        echo "# $command"
        within "cd $1 && $command" || return
    done
}

# This machine is a node of each kind; a node runs one of the commands that
# install, and the others.
install_packages_of_nodes() {
    local commands others
    commands=$(commands_of install/packages.rst Debian)
    others=$(grep -vc '^apt install' <<< "$commands")
    [ $((others + 1)) -le $LIMIT_COMMANDS ] || return
    run_commands /packages <<< "$commands"
}

guaranteed_guest() {
    cloud wait-for-bandwidth &&
        cloud openstack flavor create --vcpus 1 --ram 192 --disk 0 bw20 &&
        cloud openstack flavor set bw20 --property hw:numa_nodes=1 \
            --property ghsched:mem_bw_min=20 &&
        cloud boot guaranteed bw20 &&
        # The guarantee is in the kernel: a control group of its own.
        within 'grep MBMIN:.*0020 /sys/fs/resctrl/ghsched-*/schemata'
}

# This machine is also a node of the control plane, so the packages are purged
# when the cloud has no flavor and no name of ghsched.
go_back() {
    local commands
    commands=$(commands_of operators/going-back.rst 'With packages')
    cloud openstack compute service set --disable stock-cloud nova-compute &&
        cloud delete guaranteed &&
        sed '/^apt purge/,$d' <<< "$commands" | run_commands / &&
        cloud openstack flavor delete bw20 &&
        cloud remove-names &&
        sed -n '/^apt purge/,$p' <<< "$commands" | run_commands / &&
        within 'apt-get autoremove --purge' &&
        cloud wait-for-compute &&
        cloud openstack compute service set --enable stock-cloud nova-compute
}

compare() {
    within 'diff -r /run/before /run/after'
}

main() {
    local began took
    heading 'ghsched on a stock cloud'
    mkdir -p "$(dirname "$LOG")"
    bash "$GHSCHED_TOP/tools/guest-image.sh"
    [ -e "$BASE" ] || step 'Debian 13 with OpenStack' make_base || return
    step 'root file system' make_root || return
    step 'systemd' boot || return
    step 'stock cloud' cloud set-up || return
    step 'a guest' cloud boot first plain || return
    step 'record' cloud record /run/before || return
    began=$SECONDS
    step 'packages' install_packages_of_nodes || return
    step 'a guest with guaranteed bandwidth' guaranteed_guest || return
    took=$((SECONDS - began))
    echo "  from the stock cloud to the first guaranteed guest: $took s"
    [ "$took" -le "$LIMIT_S" ] || return
    step 'back' go_back || return
    step 'record' cloud record /run/after || return
    step 'nothing differs' compare || return
}

rc=0
main || rc=$?
if [ "$rc" != 0 ] && [ -n "$KEEP" ]; then
    echo "the machine's init is process $(machine_init); a line ends it"
    read -r _ || true
fi
end_machine
rm -rf "$ROOT"
exit $rc
