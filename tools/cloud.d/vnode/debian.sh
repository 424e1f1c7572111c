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


# Packages of Debian bookworm that are unpacked instead of installed; to be
# sourced by bash.

# debian_mirror: print the URL from which this machine's apt has Debian.
debian_mirror() {
    local uri
    uri=$(apt-get indextargets --format '$(REPO_URI)' 'Label: Debian' |
        head -n 1)
    [ -n "$uri" ] || {
        echo 'the apt of this machine has no lists of Debian: name an' \
            'archive in /etc/apt/sources.list.d and run apt-get update' >&2
        return 1
    }
    echo "$uri"
}

# debian_lists DIRECTORY SUITE: read a suite's package lists into a directory;
# DEBIAN_APT holds the options by which apt works there. The machine's own
# lists and sources are neither read nor changed.
debian_lists() {
    local directory=$1 suite=$2 mirror
    mirror=$(debian_mirror) || return
    mkdir -p "$directory"/{lists,cache}
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
        "$mirror $suite main" > "$directory/sources.list"
    DEBIAN_APT=(
        -q -o Acquire::Retries=3 -o APT::Sandbox::User=root
        -o Dir::Etc::sourcelist="$directory/sources.list"
        -o Dir::Etc::sourceparts=/dev/null
        -o Dir::State::lists="$directory/lists"
        -o Dir::Cache="$directory/cache"
    )
    apt-get "${DEBIAN_APT[@]}" update
}

# debian_download DIRECTORY PACKAGE...: after debian_lists
debian_download() {
    (cd "$1" && shift && apt-get "${DEBIAN_APT[@]}" download "$@")
}

# debian_needs PACKAGE: what a metapackage stands for, after debian_lists
debian_needs() {
    apt-cache "${DEBIAN_APT[@]}" depends "$1" |
        awk '$1 == "Depends:" { print $2; exit }'
}
