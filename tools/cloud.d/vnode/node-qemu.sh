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


# Unpack a QEMU that has the SR-IOV network card "igb" into a directory.
#
# The device model came with QEMU 8.0, and bookworm has 7.2. Bookworm's
# backports have a newer one that needs no library which bookworm has not. It
# is not installed, so the machine's own QEMU stays as it is.
#
# usage: node-qemu.sh DIRECTORY

set -euo pipefail
target=$1
. "$(dirname "${BASH_SOURCE[0]}")/debian.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
debian_lists "$work/apt" bookworm-backports
debian_download "$work" qemu-system-x86 qemu-system-data
# Not the SeaBIOS of the backports: 1.16.3 maps the registers of VFs above
# 4 GiB, where they were seen to read as zeros with QEMU 10.0.2, so that the
# driver igbvf does not work. 1.16.2 maps them below.
debian_lists "$work/bios" bookworm
debian_download "$work" seabios
for package in "$work"/*.deb; do
    dpkg-deb -x "$package" "$work/unpacked"
done
mkdir -p "$target/usr/bin" "$target/usr/share"
cp "$work/unpacked/usr/bin/qemu-system-x86_64" "$target/usr/bin/"
cp -a "$work"/unpacked/usr/share/{qemu,seabios} "$target/usr/share/"
"$target/usr/bin/qemu-system-x86_64" -version
