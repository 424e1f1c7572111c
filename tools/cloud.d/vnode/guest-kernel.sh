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


# Build the nested guest's kernel from Debian's source package.
#
# usage: guest-kernel.sh DIRECTORY [CONFIG]    makes image
#   CONFIG  file with options in addition to kernel.config

set -euo pipefail
target=$1
more=${2:-/dev/null}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/debian.sh"

work=$(mktemp -d -p "$target")
trap 'rm -rf "$work"' EXIT
debian_lists "$work/apt" bookworm
debian_download "$work" linux-source-6.1
mkdir "$work/linux"
dpkg-deb --fsys-tarfile "$work"/linux-source-*.deb |
    tar -xO ./usr/src/linux-source-6.1.tar.xz |
    tar -xJ -C "$work/linux" --strip-components=1 \
        --exclude='*/Documentation/*/*' --exclude='*/boot/dts'
cd "$work/linux"
export KBUILD_BUILD_USER=ghsched KBUILD_BUILD_HOST=ghsched
cat "$here/kernel.config" "$more" > "$work/config"
make -s KCONFIG_ALLCONFIG="$work/config" allnoconfig
nice make -s -j"$(nproc)" vmlinux
strip --strip-all -o "$target/image" vmlinux
