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


# Make a guest for "ghsched-bench cloud": Debian bookworm with redis, stress-ng
# and podman, whose storage has a container image of the first two. The disk's
# first process takes address, user data and keys for ssh from the config drive.
#
# usage: image.sh DIRECTORY    makes vmlinux, initrd.img and root.img

set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin
target=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../vnode/debian.sh"
. "$here/../vnode/root.sh"

# The package redis-server would start a server while it is installed. The
# program is that of redis-tools by another name, as in that package.
packages=(busybox-static crun dropbear-bin iproute2 kmod netavark podman
    redis-tools stress-ng)
programs=(/usr/bin/redis-server /usr/bin/redis-benchmark /usr/bin/stress-ng)
#: What --image-of-container names.
image=localhost/ghsched-load
# Large, and of no use to this machine.
unwanted='drivers/(firmware|gpu|infiniband|isdn|media|mtd|nvme|staging)/'
unwanted+='|drivers/(target|usb)/|/sound/|/net/(wireless|bluetooth|mac80211)/'

work=$(mktemp -d -p "$target")
trap 'rm -rf "$work"' EXIT
root=$work/root

configure() {
    ln -s redis-check-rdb "$root/usr/bin/redis-server"
    install -m 755 "$here/guest-init" "$root/sbin/ghsched-init"
    echo localhost > "$root/etc/hostname"
    echo '127.0.0.1 localhost' > "$root/etc/hosts"
    # There is no systemd. The driver vfs needs nothing of the kernel that
    # makes this image.
    mkdir -p "$root/etc/containers"
    printf '%s\n' '[engine]' 'cgroup_manager = "cgroupfs"' \
        'events_logger = "file"' '[containers]' 'log_driver = "k8s-file"' \
        '[network]' 'network_backend = "netavark"' \
        > "$root/etc/containers/containers.conf"
    printf '%s\n' '[storage]' 'driver = "vfs"' \
        'runroot = "/run/containers"' \
        'graphroot = "/var/lib/containers"' \
        > "$root/etc/containers/storage.conf"
}

# The programs with their libraries, and nothing else.
add_container_image() {
    local files=$work/container.tar
    # shellcheck disable=SC2046
    chroot "$root" tar -chf - "${programs[@]}" \
        $(chroot "$root" ldd "${programs[@]}" |
            awk '$1 ~ /^\// && NF > 1 { print $1 }
                $3 ~ /^\// { print $3 }' | sort -u) > "$files"
    mv "$files" "$root/srv/"
    # podman wants to see control groups, and its root as a mount.
    # shellcheck disable=SC2016
    unshare --mount sh -c '
        mount --bind "$1" "$1" && exec chroot "$1" sh -ec "
            mount -t proc proc /proc
            mount -t sysfs sysfs /sys
            mount -t cgroup2 cgroup2 /sys/fs/cgroup
            mount -t tmpfs tmpfs /run
            podman import -q /srv/container.tar $2"' - "$root" "$image"
    rm "$root/srv/container.tar"
}

debian_root "$root" "${packages[@]}"
debian_kernel "$root" "$work" "$unwanted"
debian_vmlinux "$work"
configure
add_container_image
debian_initrd "$root" "$work" "$here/../vnode/node-initrd-init"
truncate -s "$(($(du -sm "$root" | cut -f 1) * 5 / 4 + 200))M" \
    "$work/root.img"
mke2fs -q -F -t ext4 -O '^has_journal' -d "$root" "$work/root.img"
mv "$work"/{vmlinux,initrd.img,root.img} "$target/"
