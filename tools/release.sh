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

# Make the files of a release from the commit that is checked out: sdist,
# wheel, SBOM (CycloneDX) and SHA256SUMS. Sdist, wheel and SBOM are made twice;
# the release is refused when the two differ in a byte.
#
# usage: tools/release.sh [--deb] [--rpm] [--tag] VERSION [DIRECTORY]
#
# --deb  make the Debian packages too (tools/packaging/build-deb.sh)
# --rpm  make the RPM packages too (tools/packaging/build-rpm.sh)
# --tag  when all is made, sign SHA256SUMS and put the signed tag VERSION on the
#        commit, with the OpenPGP key that git signs with. Nothing may be
#        uncommitted. What publishes the release is printed.
#
# DIRECTORY (default: dist/VERSION) gets the files. pbr takes the version from
# the tag: where the commit has none yet, a copy of the repository gets it.
# Times in all files are that of the commit (SOURCE_DATE_EPOCH). Only committed
# files count. It needs python3 with venv, git, and a package index for the
# tools and libraries of tools/packaging/*.txt, which are checked by hash.

set -eu
TOP=$(cd "$(dirname "$0")/.." && pwd)
PACKAGING=$TOP/tools/packaging

die() {
    echo "release.sh: $*" >&2
    exit 1
}

DEB='' RPM='' TAG=''
while [ "${1#--}" != "${1:-}" ]; do
    case $1 in
    --deb) DEB=1 ;;
    --rpm) RPM=1 ;;
    --tag) TAG=1 ;;
    *) die "unknown option $1" ;;
    esac
    shift
done
VERSION=${1:?name a version, see the head of tools/release.sh}
grep -Eqx '[0-9]+\.[0-9]+\.[0-9]+(\.0(a|b|rc)[0-9]+)?' <<< "$VERSION" ||
    die "$VERSION is not of the form 1.2.3 or 1.2.3.0rc1"

# What --tag needs, before minutes of work: a key, and a commit that is all.
check_tag() {
    [ -z "$(git -C "$TOP" status --porcelain --untracked-files=no)" ] ||
        die 'there are changes that are not committed'
    git -C "$TOP" rev-parse -q --verify "refs/tags/$VERSION" > /dev/null &&
        die "there is a tag $VERSION already"
    # Without user.signingkey git signs with the committer's key.
    KEY=$(git -C "$TOP" config user.signingkey ||
        git -C "$TOP" var GIT_COMMITTER_IDENT | sed 's/>.*/>/')
    gpg --batch --list-secret-keys "$KEY" 2> /dev/null | grep -q '^sec' ||
        die "gpg has no secret key of $KEY to sign with: set user.signingkey"
}

sign() {
    gpg --batch --yes --armor --local-user "$KEY" \
        --output "$OUTPUT/SHA256SUMS.asc" --detach-sign "$OUTPUT/SHA256SUMS" ||
        die 'cannot sign SHA256SUMS'
    git -C "$TOP" tag -s -m "ghsched $VERSION" "$VERSION" ||
        die "cannot sign the tag $VERSION"
    echo "tagged $(git -C "$TOP" rev-parse --short HEAD) as $VERSION"
    echo "publish it with: git push gerrit $VERSION"
}

[ -z "$TAG" ] || check_tag
OUTPUT=$(realpath -m "${2:-$TOP/dist/$VERSION}")
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
umask 022
export LC_ALL=C.UTF-8 TZ=UTC PIP_DISABLE_PIP_VERSION_CHECK=1
SOURCE_DATE_EPOCH=$(git -C "$TOP" log -1 --format=%ct)
export SOURCE_DATE_EPOCH

# A clone of the commit whose tag is VERSION.
clone() {
    local tagged head
    git clone -q --no-hardlinks "$TOP" "$1"
    git -C "$1" checkout -q --detach \
        "$(git -C "$TOP" rev-parse HEAD)"
    head=$(git -C "$1" rev-parse HEAD)
    if tagged=$(git -C "$1" rev-parse -q --verify \
        "refs/tags/$VERSION^{commit}"); then
        [ "$tagged" = "$head" ] ||
            die "the tag $VERSION is on $tagged, not on $head"
    else
        GIT_COMMITTER_DATE="@$SOURCE_DATE_EPOCH +0000" git -C "$1" \
            -c user.name=release -c user.email=release@localhost \
            tag -a -m "ghsched $VERSION" "$VERSION"
    fi
}

# make_venv NAME LIST: an environment with exactly the packages of a list.
make_venv() {
    python3 -m venv "$WORK/$1"
    "$WORK/$1/bin/pip" install -q --require-hashes -r "$PACKAGING/$2"
}

# repack FILE: the same tar.gz with sorted names, one time and no owner.
repack() {
    local tree
    tree=$(mktemp -d -p "$WORK")
    tar -xzf "$1" -C "$tree"
    chmod -R u=rwX,go=rX "$tree"
    tar -C "$tree" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 \
        --group=0 --numeric-owner --format=ustar -cf - \
        "$(basename "$1" .tar.gz)" | gzip -9n > "$1.new"
    mv "$1.new" "$1"
    rm -rf "$tree"
}

# The wheel is built from the sdist, so the sdist is known to be whole.
build_python() {
    local sdist
    clone "$1.tree"
    (cd "$1.tree" && PATH=$WORK/tools/bin:$PATH "$WORK/tools/bin/python" \
        -m build -s --no-isolation -o "$1" . > "$1.log" 2>&1) ||
        { cat "$1.log"; die 'cannot build the sdist'; }
    sdist=$1/ghsched-$VERSION.tar.gz
    [ -f "$sdist" ] || die "pbr made $(ls "$1"), not ghsched-$VERSION.tar.gz"
    repack "$sdist"
    mkdir "$1.sdist"
    tar -xzf "$sdist" -C "$1.sdist" --strip-components 1
    (cd "$1.sdist" && "$WORK/tools/bin/python" \
        -m build -w --no-isolation -o "$1" . > "$1.log" 2>&1) ||
        { cat "$1.log"; die 'cannot build the wheel'; }
}

# The SBOM is of an environment that has the wheel and what it needs, each with
# its licence.
describe() {
    "$WORK/tools/bin/cyclonedx-py" environment --output-reproducible \
        --spec-version 1.6 --output-format JSON \
        --output-file "$1/ghsched-$VERSION.cdx.json" "$WORK/wheel" 2> \
        "$1.log" || { cat "$1.log"; die 'cannot write the SBOM'; }
    python3 "$PACKAGING/finish_sbom.py" "$1/ghsched-$VERSION.cdx.json"
}

make_venv tools release-tools.txt
build_python "$WORK/first"
build_python "$WORK/second"
make_venv wheel constraints.txt
"$WORK/wheel/bin/pip" install -q --no-deps --no-index \
    "$WORK/first/ghsched-$VERSION-py3-none-any.whl"
"$WORK/wheel/bin/pip" check
"$WORK/wheel/bin/pip" uninstall -q -y pip
describe "$WORK/first"
describe "$WORK/second"
diff -r "$WORK/first" "$WORK/second" || die 'two builds differ'

mkdir -p "$OUTPUT"
cp "$WORK"/first/* "$OUTPUT"
[ -z "$DEB" ] || "$PACKAGING/build-deb.sh" "$OUTPUT/ghsched-$VERSION.tar.gz" \
    "$OUTPUT/deb"
[ -z "$RPM" ] || "$PACKAGING/build-rpm.sh" "$OUTPUT/ghsched-$VERSION.tar.gz" \
    "$OUTPUT/rpm"
(cd "$OUTPUT" && find . -type f ! -name 'SHA256SUMS*' -printf '%P\0' |
    sort -z | xargs -0 sha256sum > SHA256SUMS && cat SHA256SUMS)
[ -z "$TAG" ] || sign
