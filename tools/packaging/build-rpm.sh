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

# Build the RPM packages from an sdist, twice, and compare them byte by byte.
# rpmlint must find no error.
#
# usage: build-rpm.sh SDIST DIRECTORY
#
# SDIST is ghsched-VERSION.tar.gz of tools/release.sh. DIRECTORY gets the
# packages. It needs rpmbuild, rpmlint, pip, and setuptools and pbr in the
# versions of the spec; on another machine name a directory with such a system
# in CHROOT. Where rpm knows no package of the system, build requirements are
# not checked.

set -eu
SDIST=$(realpath "$1")
OUTPUT=$(realpath -m "$2")
HERE=$(cd "$(dirname "$0")" && pwd)
VERSION=$(basename "$SDIST" .tar.gz)
VERSION=${VERSION#ghsched-}
CHROOT=${CHROOT:-}
WORK=$(mktemp -d "$CHROOT/tmp/build-rpm.XXXXXX")
trap 'rm -rf "$WORK"' EXIT
SOURCE_DATE_EPOCH=$(date -ud "$(tar -tvzf "$SDIST" --full-time --utc |
    awk '{ print $4 " " $5 }' | sort | tail -1)" +%s)
export SOURCE_DATE_EPOCH LC_ALL=C.UTF-8 TZ=UTC
umask 022

inside() {
    ${CHROOT:+chroot "$CHROOT"} "$@"
}

NODEPS=--nodeps
if inside rpm -q rpm > /dev/null 2>&1; then
    NODEPS=''
fi
mkdir "$WORK/sources"
cp "$SDIST" "$HERE"/rpm/* "$WORK/sources"
PLACE=${WORK#"$CHROOT"}
for round in first second; do
    # Both in one place: the name of the place must not be in the packages.
    # shellcheck disable=SC2086
    inside rpmbuild -ba $NODEPS --define "upstream $VERSION" \
        --define "_topdir $PLACE/build" --define "_sourcedir $PLACE/sources" \
        --define '_buildhost reproducible' \
        --define 'use_source_date_epoch_as_buildtime 1' \
        --define 'clamp_mtime_to_source_date_epoch 1' \
        --define 'build_mtime_policy clamp_to_source_date_epoch' \
        "$PLACE/sources/ghsched.spec" > "$WORK/$round.log" 2>&1 ||
        { tail -40 "$WORK/$round.log"; exit 1; }
    mkdir "$WORK/$round"
    mv "$WORK"/build/RPMS/*/*.rpm "$WORK"/build/SRPMS/*.rpm "$WORK/$round"
    rm -rf "$WORK/build"
done
diff -r "$WORK/first" "$WORK/second"
inside sh -c "rpmlint -c $PLACE/sources/rpmlint.toml \
    $PLACE/sources/ghsched.spec $PLACE/first/*.rpm" |
    tee "$WORK/rpmlint.log" | grep -v ': W: ' || true
if grep -q ': E: ' "$WORK/rpmlint.log"; then
    exit 1
fi
mkdir -p "$OUTPUT"
cp "$WORK"/first/* "$OUTPUT"
ls -l "$OUTPUT"
