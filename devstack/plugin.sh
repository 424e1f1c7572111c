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

# DevStack plugin: stack.sh and its kin source this file with the mode and the
# phase as arguments. See devstack/README.rst.

_XTRACE_GHSCHED=$(set +o | grep xtrace)
set +o xtrace

. $GHSCHED_DIR/devstack/lib/ghsched

if is_service_enabled ghsched; then
    case "$1/${2:-}" in
    stack/install)
        echo_summary "Installing ghsched"
        install_ghsched
        ;;
    stack/post-config)
        echo_summary "Configuring ghsched"
        configure_ghsched
        ;;
    stack/test-config)
        if is_service_enabled tempest; then
            echo_summary "Configuring tempest for ghsched"
            configure_ghsched_tempest
        fi
        ;;
    unstack/*)
        stop_ghsched
        ;;
    clean/*)
        cleanup_ghsched
        ;;
    esac
fi

$_XTRACE_GHSCHED
