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

# What the scripts of this directory share; to be sourced by bash.
#
# GHSCHED_HOME  everything that these scripts make lives below it
# GHSCHED_TOP   the top of this source tree
# VENV          the Python environment: that of Nova 34, see use_release
# SETUP_LOG     the output of every step

GHSCHED_TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
GHSCHED_HOME=${GHSCHED_HOME:-/var/lib/ghsched}
PYTHON=${PYTHON:-/usr/bin/python3}
VENV=$GHSCHED_HOME/venv
SETUP_LOG=$GHSCHED_HOME/log/setup.log
export GHSCHED_TOP GHSCHED_HOME VENV

# Byte code is what makes the second start of a service fast.
unset PYTHONDONTWRITEBYTECODE
export no_proxy="127.0.0.1,localhost${no_proxy:+,$no_proxy}"

# -- talking to the user -----------------------------------------------------

die() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# show_help "$0" "$@": when help is asked for, print what the script's first
# comment below the license says, and end. Nothing must have happened before.
show_help() {
    case " ${*:2} " in
    *' -h '* | *' --help '*) ;;
    *) return 0 ;;
    esac
    awk '/^# under the License\.$/ { on = 1; next }
        on && /^#/ { sub(/^# ?/, ""); print; told = 1; next }
        told { exit }' "$1"
    exit
}

heading() {
    printf '\n== %s ==\n' "$*"
}

# step TEXT COMMAND [ARGUMENT...]: one line with the seconds it took. The
# command's output goes to SETUP_LOG; its end is shown when the command fails.
# A function run as a step must return its failures itself: "set -e" does not
# hold inside.
step() {
    local text=$1 begin=$EPOCHREALTIME rc=0 from
    shift
    printf '  %-52s' "$text"
    mkdir -p "$(dirname "$SETUP_LOG")"
    printf '### %(%F %T)T %s\n' -1 "$text" >> "$SETUP_LOG"
    from=$(wc -l < "$SETUP_LOG")
    "$@" >> "$SETUP_LOG" 2>&1 < /dev/null || rc=$?
    if [ "$rc" = 0 ]; then
        printf '%7.1f s\n' "$(seconds_since "$begin")"
        return 0
    fi
    printf '%7.1f s  FAILED\n' "$(seconds_since "$begin")"
    {
        echo "'$text' failed (exit status $rc). Last lines of $SETUP_LOG:"
        tail -n +$((from + 1)) "$SETUP_LOG" | tail -n 25 | sed 's/^/    /'
    } >&2
    return "$rc"
}

seconds_since() {
    awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'
}

# need_root "$@": go on as root, through sudo if there is one.
need_root() {
    [ "$(id -u)" = 0 ] && return 0
    command -v sudo > /dev/null ||
        die "must be run as root (there is no sudo on this machine)"
    exec sudo GHSCHED_HOME="$GHSCHED_HOME" PYTHON="$PYTHON" \
        bash "$0" "$@"
}

# -- what takes long to make ---------------------------------------------------

# cached DIRECTORY TEXT KEY COMMAND [ARGUMENT...]: let a command fill a
# directory, the first argument that it gets, unless that was done for this
# key. The directory is whole or not there.
cached() {
    local target=$1 text=$2 key=$3 command=$4
    [ "$(cat "$target/revision" 2> /dev/null)" != "$key" ] || return 0
    rm -rf "$target.new"
    mkdir -p "$target.new"
    step "$text" "$command" "$target.new" "${@:5}" || return
    echo "$key" > "$target.new/revision"
    rm -rf "$target"
    mv "$target.new" "$target"
}

# key_of FILE...: the hash of what they contain.
key_of() {
    cat "$@" | sha256sum | cut -c 1-16
}

# -- containers of systemd-nspawn ----------------------------------------------

# The process of the systemd-nspawn that runs, if any.
unit=

# machine_init: print the process ID of the container's init, the child of
# systemd-nspawn.
machine_init() {
    local pid
    pid=$(pgrep -P "$unit" | head -n 1)
    [ -n "$pid" ] && echo "$pid"
}

# end_machine: power the container off, and wait.
end_machine() {
    [ -n "$unit" ] || return 0
    # SIGRTMIN+4 asks systemd to power off.
    kill -s RTMIN+4 "$(machine_init)" 2> /dev/null || kill "$unit" || true
    wait "$unit" || true
    unit=
}

# -- Debian packages ---------------------------------------------------------

# packages_of FILE [PROFILE...]: the Debian packages that a bindep file names
# for these profiles. A line counts if it has no profile or one of those
# asked for, if no "!profile" of it is asked for, and if it is for dpkg.
packages_of() {
    awk -v wanted=" ${*:2} " '
        { sub(/#.*/, "") }
        NF == 0 { next }
        {
            name = $1
            selector = ""
            if (match($0, /\[[^]]*\]/))
                selector = substr($0, RSTART + 1, RLENGTH - 2)
            platforms = 0; fits_platform = 0
            profiles = 0; fits_profile = 0; refused = 0
            n = split(selector, words, /[ \t]+/)
            for (i = 1; i <= n; i++) {
                word = words[i]
                if (word == "") continue
                negated = (sub(/^!/, "", word) == 1)
                if (word ~ /^platform:/) {
                    mine = (word ~ /^platform:(dpkg|debian)/)
                    if (negated) { if (mine) refused = 1; continue }
                    platforms++
                    if (mine) fits_platform++
                    continue
                }
                gsub(/[()]/, "", word)
                asked = index(wanted, " " word " ") > 0
                if (negated) { if (asked) refused = 1; continue }
                profiles++
                if (asked) fits_profile++
            }
            if (refused) next
            if (platforms && !fits_platform) next
            if (profiles && !fits_profile) next
            print name
        }' "$1" | sort -u
}

_is_installed() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2> /dev/null)" = \
        installed ]
}

missing_packages() {
    local package
    for package in $(packages_of "$@"); do
        _is_installed "$package" || echo "$package"
    done
}

_apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -q -y \
        -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@"
}

# _with_services_asleep COMMAND...: Debian starts a service when its package
# is installed. Ours run privately, so for as long as the command runs
# policy-rc.d forbids the start; a policy of the machine's own is respected.
_with_services_asleep() (
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        trap 'rm -f $policy' EXIT
        printf '#!/bin/sh\n# %s\nexit 101\n' \
            'ghsched: no service start while packages are installed' \
            > $policy
        chmod 755 $policy
    fi
    "$@"
)

# _disable_units PACKAGE...: a freshly installed package enables its units for
# the next boot. Nobody on this machine asked for that service.
_disable_units() {
    local unit units
    command -v systemctl > /dev/null || return 0
    units=$(dpkg -L "$@" 2> /dev/null |
        grep -E '/lib/systemd/system/[^/@]+\.(service|socket|timer)$') ||
        return 0
    for unit in $units; do
        systemctl disable "$(basename "$unit")" 2> /dev/null || true
    done
}

_installed_names() {
    dpkg-query -W -f='${db:Status-Status} ${Package}\n' |
        awk '$1 == "installed" { print $2 }' | sort -u
}

# Packages whose services we run ourselves, or not at all.
_ASLEEP='mariadb-|rabbitmq-|erlang-|libvirt-|qemu-|redis-|sysstat'
_ASLEEP+='|openssh-server'

# The packages of a machine that got a unit from us are those which were not
# there before. Only the ones that we run ourselves are put to sleep.
_install_missing() {
    local before after
    before=$(_installed_names)
    _with_services_asleep _apt_get install --no-install-recommends "$@" ||
        return
    after=$(_installed_names)
    # shellcheck disable=SC2046
    _disable_units $(comm -13 <(echo "$before") <(echo "$after") |
        grep -E "^($_ASLEEP)")
    return 0
}

_update_lists_and_install() {
    _apt_get update && _install_missing "$@"
}

# install_packages FILE [PROFILE...]: install what is missing of a bindep
# file's packages; no network is touched when nothing is.
install_packages() {
    local missing
    missing=$(missing_packages "$@")
    [ -n "$missing" ] || return 0
    command -v apt-get > /dev/null ||
        die "needs Debian packages, and there is no apt-get:" $missing
    # shellcheck disable=SC2086
    if _can_install $missing; then
        step "Debian packages ($(wc -w <<< "$missing"))" \
            _install_missing $missing
    else
        step "package lists, Debian packages ($(wc -w <<< "$missing"))" \
            _update_lists_and_install $missing
    fi
}

# Lists older than a day may name packages that the archive has replaced.
_can_install() {
    [ -n "$(find /var/lib/apt/lists -maxdepth 1 -name '*Packages*' \
        -mtime -1 2> /dev/null | head -n 1)" ] || return 1
    apt-get -s install --no-install-recommends "$@" > /dev/null 2>&1
}

# -- Python ------------------------------------------------------------------

# Versions to choose, for pip; see use_release.
CONSTRAINTS=/dev/null
REQUIREMENT_FILES=(
    "$GHSCHED_TOP/tools/cloud-requirements.txt"
    "$GHSCHED_TOP/requirements.txt"
    "$GHSCHED_TOP/test-requirements.txt"
)

_present_requirements() {
    local file
    for file in "${REQUIREMENT_FILES[@]}"; do
        [ -f "$file" ] && echo "$file"
    done
    return 0
}

_requirements_hash() {
    # shellcheck disable=SC2046
    { "$PYTHON" --version; cat $(_present_requirements) "$CONSTRAINTS"; } |
        sha256sum |
        cut -c 1-16
}

# Every file of the project that git would know of; all of them where the
# tree is not a git work tree.
project_files() {
    if git -C "$GHSCHED_TOP" rev-parse > /dev/null 2>&1; then
        git -C "$GHSCHED_TOP" ls-files -z -co --exclude-standard
    else
        (cd "$GHSCHED_TOP" && find . -type f \
            -not -path '*/.*' -not -name '*.pyc' -printf '%P\0')
    fi
}

# What an installed wheel depends on; the tests in it are run from the tree.
_project_hash() {
    (cd "$GHSCHED_TOP" && project_files | sort -z |
        grep -z -E '^(ghsched|tempest_plugin/|etc/|setup\.|pyproject|README)' |
        grep -z -v '/tests/' | xargs -0 -r sha256sum 2> /dev/null |
        sha256sum | cut -c 1-16)
}

_make_venv() {
    local hash=$1 file args=()
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        { echo "$PYTHON is older than 3.11"; return 1; }
    # The one that PYTHON was made from: PYTHON may be that of VENV itself.
    PYTHON=$("$PYTHON" -c 'import sys; print(sys._base_executable)') || return
    rm -rf "$VENV"
    "$PYTHON" -m venv "$VENV" || return
    while read -r file; do
        args+=(-r "$file")
    done < <(_present_requirements)
    "$VENV/bin/pip" install -q --upgrade pip wheel pbr 'setuptools<82' \
        || return
    "$VENV/bin/pip" install -q -c "$CONSTRAINTS" "${args[@]}" || return
    echo "$hash" > "$VENV/ghsched-requirements"
}

# The wheel is built from a copy, so that the tree stays as it is.
_install_project() {
    local hash=$1
    (cd "$GHSCHED_TOP" && project_files |
        while IFS= read -r -d '' file; do
            [ -e "$file" ] && printf '%s\0' "$file"
        done | tar --null --files-from=- -cf -) |
        _install_tree --force-reinstall || return
    echo "$hash" > "$VENV/ghsched-project"
}

# _install_tree OPTION...: a wheel of the tree that comes as a tar archive;
# the options are those of "pip install". TREE_VERSION is the version of a tree
# that is none of this project; this one's is the last tag of git, which a copy
# of the tree need not have.
_install_tree() {
    local work version rc=0
    work=$(mktemp -d) || return
    tar -xf - -C "$work"
    # pbr takes the files that are not Python from the index of git.
    [ -z "${TREE_VERSION:-}" ] ||
        { git -C "$work" init -q && git -C "$work" add -A -f; } || return
    version=${TREE_VERSION:-$(git -C "$GHSCHED_TOP" describe --tags \
        --abbrev=0 2> /dev/null || echo 0.1.0)}
    PBR_VERSION=$version "$VENV/bin/pip" wheel -q --no-deps \
        --no-build-isolation -w "$work/dist" "$work" &&
        "$VENV/bin/pip" install -q --no-deps "$@" "$work"/dist/*.whl || rc=$?
    rm -rf "$work"
    return "$rc"
}

# use_release NUMBER: let VENV be an environment of its own with this release
# of Nova and the upper constraints of its OpenStack.
use_release() {
    local file=$GHSCHED_TOP/tools/releases/$1.txt
    [ -f "$file" ] || die "no such release of Nova: $1; there are" \
        $(cd "$GHSCHED_TOP/tools/releases" && echo ?*.txt | sed 's/\.txt//g')
    [ "$1" != 34 ] || return 0
    VENV=$GHSCHED_HOME/releases/$1
    CONSTRAINTS=$file
    REQUIREMENT_FILES=(
        "$GHSCHED_TOP/requirements.txt"
        "$GHSCHED_TOP/test-requirements.txt"
    )
}

# Source tree of Nova to install, see use_nova.
NOVA_TREE=

# use_nova DIRECTORY: let VENV be an environment of its own with Nova from a
# source tree, unpacked or a git repository (its HEAD).
use_nova() {
    [ -d "$1" ] || die "no such directory: $1"
    use_release 33
    NOVA_TREE=$(realpath "$1")
    VENV=$GHSCHED_HOME/releases/tree
    CONSTRAINTS=$GHSCHED_TOP/tools/releases/34.txt
}

# source_of DIRECTORY: a source tree as a tar archive.
source_of() {
    if [ "$(git -C "$1" rev-parse --show-toplevel 2> /dev/null ||
        git -C "$1" rev-parse --absolute-git-dir 2> /dev/null)" = "$1" ]; then
        git -C "$1" archive HEAD
    else
        tar -cf - -C "$1" --exclude=.git --sort=name --mtime=@0 .
    fi
}

# nova_version: what the Nova of NOVA_TREE calls itself, such as 33.1.0.dev347
# between two releases. For a git repository pbr counts it.
nova_version() {
    local work rc=0
    sed -n 's/^Version: //p' "$NOVA_TREE/PKG-INFO" 2> /dev/null | grep . &&
        return
    work=$(mktemp -d) || return
    git -C "$NOVA_TREE" archive HEAD | tar -xf - -C "$work" &&
        (cd "$work" && GIT_DIR=$(git -C "$NOVA_TREE" rev-parse \
            --absolute-git-dir) SKIP_GENERATE_AUTHORS=1 \
            SKIP_WRITE_GIT_CHANGELOG=1 \
            "$VENV/bin/python" -W ignore setup.py -q --version | tail -n 1) ||
        rc=$?
    rm -rf "$work"
    return "$rc"
}

_install_nova() {
    local hash=$1 version
    version=$(nova_version)
    source_of "$NOVA_TREE" | SKIP_GENERATE_AUTHORS=1 \
        SKIP_WRITE_GIT_CHANGELOG=1 TREE_VERSION=$version \
        _install_tree --force-reinstall &&
        "$VENV/bin/pip" install -q "nova===$version" || return
    echo "$hash" > "$VENV/ghsched-nova"
}

# ensure_venv: $VENV with everything that the cloud and the tests need, and
# with this project as a wheel. Made again when a requirements file changed;
# the wheel is made again when the project changed.
ensure_venv() {
    local hash
    mkdir -p "$GHSCHED_HOME/log" "$(dirname "$VENV")"
    exec 9> "$GHSCHED_HOME/venv.lock"
    flock 9
    hash=$(_requirements_hash)
    if [ "$(cat "$VENV/ghsched-requirements" 2> /dev/null)" != "$hash" ]; then
        step "Python packages, in $VENV" _make_venv "$hash" || return
    fi
    if [ -n "$NOVA_TREE" ]; then
        hash=$(source_of "$NOVA_TREE" | sha256sum)
        if [ "$(cat "$VENV/ghsched-nova" 2> /dev/null)" != "$hash" ]; then
            step "Nova of $NOVA_TREE" _install_nova "$hash" || return
        fi
    fi
    hash=$(_project_hash)
    if [ "$(cat "$VENV/ghsched-project" 2> /dev/null)" != "$hash" ]; then
        step "this project's wheel" _install_project "$hash" || return
    fi
    exec 9>&-
}

# value_of OPTION ARGUMENT...: what is given as "OPTION VALUE" or "OPTION=VALUE".
value_of() {
    local name=$1
    shift
    while [ $# -gt 0 ]; do
        case $1 in
        "$name") echo "${2:-}" ;;
        "$name="*) echo "${1#*=}" ;;
        esac
        shift
    done
}

# ensure_older REVISION: an older release of this project, in a directory for
# PYTHONPATH.
ensure_older() {
    local commit
    commit=$(git -C "$GHSCHED_TOP" rev-parse --verify -q "$1^{commit}") ||
        die "no such revision of $GHSCHED_TOP: $1"
    [ "$(cat "$VENV/older/ghsched-project" 2> /dev/null)" = "$commit" ] ||
        step "the wheel of $1" _install_older "$commit"
}

_install_older() {
    rm -rf "$VENV/older"
    git -C "$GHSCHED_TOP" archive "$1" |
        _install_tree --target "$VENV/older" &&
        echo "$1" > "$VENV/older/ghsched-project"
}

# ensure_watcher: Watcher's client in $VENV, and Watcher with what only it
# needs in a directory of its own there: in one process, as tests are, its
# options and those of Nova cannot both be registered.
ensure_watcher() {
    local file=$GHSCHED_TOP/tools/watcher-requirements.txt
    cmp -s "$file" "$VENV/ghsched-watcher" ||
        step "Watcher's Python packages" _install_watcher "$file"
}

_install_watcher() {
    rm -rf "$VENV/watcher"
    "$VENV/bin/pip" install -q --no-deps --target "$VENV/watcher" -r "$1" &&
        "$VENV/bin/pip" install -q python-watcherclient==4.11.0 \
            -c "$GHSCHED_TOP/tools/cloud-requirements.txt" &&
        cp "$1" "$VENV/ghsched-watcher"
}
