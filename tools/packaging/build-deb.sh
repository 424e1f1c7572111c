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

# Build the Debian packages from an sdist, twice, and compare them byte by
# byte. lintian must find no error.
#
# usage: build-deb.sh SDIST DIRECTORY
#
# SDIST is ghsched-VERSION.tar.gz of tools/release.sh. DIRECTORY gets the
# packages and the source package. It needs Debian 13 or newer with the build
# dependencies of debian/control ("apt-get build-dep"); on another machine name
# a directory with such a system in CHROOT. DEB_BUILD_PROFILES=nodoc leaves
# ghsched-doc out.

set -eu
SDIST=$(realpath "$1")
OUTPUT=$(realpath -m "$2")
HERE=$(cd "$(dirname "$0")" && pwd)
NAME=$(basename "$SDIST" .tar.gz)
# 1.2.3.0rc1 is 1.2.3~rc1, which is before 1.2.3.
VERSION=$(sed -E 's/^ghsched-//; s/\.0(a|b|rc)/~\1/' <<< "$NAME")
CHROOT=${CHROOT:-}
WORK=$(mktemp -d "$CHROOT/tmp/build-deb.XXXXXX")
trap 'rm -rf "$WORK"' EXIT
export LC_ALL=C.UTF-8 TZ=UTC DEB_BUILD_OPTIONS=nocheck
umask 022

# inside DIRECTORY COMMAND...: in the system that builds.
inside() {
    local directory=${1#"$CHROOT"}
    shift
    # shellcheck disable=SC2016
    ${CHROOT:+chroot "$CHROOT"} sh -c 'cd "$0" && exec "$@"' \
        "$directory" "$@"
}

# The times of the package are that of the newest file of the sdist.
epoch() {
    tar -tvzf "$1" --full-time --utc | awk '{ print $4 " " $5 }' | sort |
        tail -1 | { read -r when && date -ud "$when" +%s; }
}

# prepare DIRECTORY: the source tree with debian/.
prepare() {
    mkdir "$1"
    cp "$SDIST" "$1/ghsched_$VERSION.orig.tar.gz"
    tar -xzf "$SDIST" -C "$1"
    cp -r "$HERE/debian" "$1/$NAME/debian"
    sed -i -E "1s/\(.*-/($VERSION-/; s/^( -- .*>  ).*/\1$(date -Rud \
        "@$(epoch "$SDIST")")/" "$1/$NAME/debian/changelog"
}

for round in first second; do
    prepare "$WORK/$round"
    inside "$WORK/$round/$NAME" dpkg-buildpackage -us -uc --build=full \
        > "$WORK/$round.log" 2>&1 ||
        { tail -50 "$WORK/$round.log"; exit 1; }
    rm -rf "${WORK:?}/$round/$NAME"
    rm -f "$WORK/$round"/*.buildinfo "$WORK/$round"/*.changes
done
diff -r "$WORK/first" "$WORK/second"
inside "$WORK/first" sh -c 'lintian --fail-on error --allow-root \
    --tag-display-limit 0 *.dsc *.deb'
mkdir -p "$OUTPUT"
cp "$WORK"/first/* "$OUTPUT"
ls -l "$OUTPUT"
