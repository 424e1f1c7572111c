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


# Make a guest as tenants have it: Debian bookworm with its stock kernel,
# systemd, redis, and ghsched-guest with its unit. It asks for its addresses on
# the console, and does the commands of the checks that come over the network.
#
# usage: image.sh DIRECTORY    makes vmlinux, initrd.img and root.img

set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin
target=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../vnode/debian.sh"
. "$here/../vnode/root.sh"

# The program redis-server is that of redis-tools by another name, as in its
# own package, which would start a server.
packages=(busybox-static ethtool iproute2 kmod procps python3 redis-tools
    systemd systemd-sysv udev)
# Large, and of no use to this machine.
unwanted='drivers/(firmware|gpu|infiniband|isdn|media|mtd|nvme|staging)/'
unwanted+='|drivers/(target|usb)/|/sound/|/net/(wireless|bluetooth|mac80211)/'

work=$(mktemp -d -p "$target")
trap 'rm -rf "$work"' EXIT
root=$work/root

configure() {
    ln -s redis-check-rdb "$root/usr/bin/redis-server"
    # Where the initrd goes on.
    ln -s ../lib/systemd/systemd "$root/sbin/ghsched-init"
    echo guest > "$root/etc/hostname"
    echo '127.0.0.1 localhost guest' > "$root/etc/hosts"
    install -D "$here/../../../etc/ghsched/guest/ghsched-guest" \
        -t "$root/usr/local/sbin"
    install -m 644 "$here/../../../etc/ghsched/guest/ghsched-guest.service" \
        "$here"/*.{service,socket} -t "$root/etc/systemd/system"
    install "$here/addresses" -t "$root/usr/local/sbin"
    ln -s multi-user.target "$root/etc/systemd/system/default.target"
    chroot "$root" systemctl --quiet enable ghsched-guest addresses \
        commands.socket
    chroot "$root" systemctl --quiet mask getty@tty1 serial-getty@ttyS0 \
        apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
        e2scrub_all.timer e2scrub_reap fstrim.timer systemd-timesyncd
}

debian_root "$root" "${packages[@]}"
debian_kernel "$root" "$work" "$unwanted"
debian_vmlinux "$work"
configure
debian_initrd "$root" "$work" "$here/../vnode/node-initrd-init"
truncate -s "$(($(du -sm "$root" | cut -f 1) * 5 / 4 + 100))M" \
    "$work/root.img"
mke2fs -q -F -t ext4 -O '^has_journal' -d "$root" "$work/root.img"
mv "$work"/{vmlinux,initrd.img,root.img} "$target/"
