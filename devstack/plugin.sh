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

GHSCHED_FILTER=GhschedNUMATopologyFilter
GHSCHED_SCHEDULER=ghsched_nova.scheduler
GHSCHED_FRAGMENTATION=$GHSCHED_SCHEDULER.weighers.GhschedFragmentationWeigher
GHSCHED_BANDWIDTH=$GHSCHED_SCHEDULER.bandwidth_weigher.GhschedBandwidthWeigher
GHSCHED_ROOTWRAP=rootwrap.d/ghsched.filters

# setup_develop makes an editable install, in Nova's environment when Nova has
# one of its own. The extra "libvirt" is left out: devstack installs
# libvirt-python itself where n-cpu runs, and a controller needs none.
function install_ghsched {
    setup_develop $GHSCHED_DIR
}

function configure_ghsched {
    configure_ghsched_scheduler
    if is_service_enabled n-cpu; then
        configure_ghsched_compute
    fi
    if is_service_enabled placement-api; then
        configure_ghsched_placement
    fi
}

# For hosts with many PFs, see doc/source/admin/placement.rst.
function configure_ghsched_placement {
    if [[ -n "$GHSCHED_MAX_ALLOCATION_CANDIDATES" ]]; then
        iniset $PLACEMENT_CONF placement max_allocation_candidates \
            $GHSCHED_MAX_ALLOCATION_CANDIDATES
        iniset $PLACEMENT_CONF placement \
            allocation_candidates_generation_strategy breadth-first
    fi
}

# Ours does the work of NUMATopologyFilter too, and must run last: it sends
# one host's NUMA nodes on to the claim, so no filter may drop that host after
# it.
function configure_ghsched_scheduler {
    local filters
    filters=$(iniget $NOVA_CONF filter_scheduler enabled_filters)
    filters=$(tr ',' '\n' <<< "$filters" |
        grep -v -x -e NUMATopologyFilter -e $GHSCHED_FILTER -e '' |
        paste -s -d ,)
    iniset $NOVA_CONF filter_scheduler enabled_filters \
        "${filters:+$filters,}$GHSCHED_FILTER"
    iniset_multiline $NOVA_CONF filter_scheduler available_filters \
        nova.scheduler.filters.all_filters \
        ghsched_nova.scheduler.filters.$GHSCHED_FILTER
    configure_ghsched_weighers
    if [[ -n "$GHSCHED_BANDWIDTH_ACCOUNTING" ]]; then
        iniset $NOVA_CONF ghsched bandwidth_accounting \
            $GHSCHED_BANDWIDTH_ACCOUNTING
    fi
}

# Nova's own weighers stay: without any named, all of them are on.
function configure_ghsched_weighers {
    local weighers
    weighers=$(iniget $NOVA_CONF filter_scheduler weight_classes)
    weighers=$(tr ',' '\n' <<< "$weighers" |
        grep -v -x -e $GHSCHED_FRAGMENTATION -e $GHSCHED_BANDWIDTH -e '' |
        paste -s -d ,)
    weighers=${weighers:-nova.scheduler.weights.all_weighers}
    iniset $NOVA_CONF filter_scheduler weight_classes \
        "$weighers,$GHSCHED_FRAGMENTATION,$GHSCHED_BANDWIDTH"
    if [[ -n "$GHSCHED_FRAGMENTATION_MULTIPLIER" ]]; then
        iniset $NOVA_CONF ghsched fragmentation_weight_multiplier \
            $GHSCHED_FRAGMENTATION_MULTIPLIER
    fi
    if [[ -n "$GHSCHED_BANDWIDTH_MULTIPLIER" ]]; then
        iniset $NOVA_CONF ghsched bandwidth_weight_multiplier \
            $GHSCHED_BANDWIDTH_MULTIPLIER
    fi
}

# $NOVA_CPU_CONF is made from $NOVA_CONF when nova-compute is started.
function configure_ghsched_compute {
    iniset $NOVA_CONF DEFAULT compute_driver ghsched.GhschedLibvirtDriver
    iniset $NOVA_CONF ghsched resctrl_path $GHSCHED_RESCTRL_PATH
    if [[ -n "$GHSCHED_RESERVED_BANDWIDTH" ]]; then
        iniset $NOVA_CONF ghsched reserved_bandwidth \
            $GHSCHED_RESERVED_BANDWIDTH
    fi
    if [[ -n "$GHSCHED_RESERVED_CONTROL_GROUPS" ]]; then
        iniset $NOVA_CONF ghsched reserved_control_groups \
            $GHSCHED_RESERVED_CONTROL_GROUPS
    fi
    if [[ -n "$GHSCHED_GROUP_SHARING" ]]; then
        iniset $NOVA_CONF ghsched group_sharing $GHSCHED_GROUP_SHARING
    fi
    if [[ -n "$GHSCHED_DEFAULT_BANDWIDTH_MAX" ]]; then
        iniset $NOVA_CONF ghsched default_bandwidth_max \
            $GHSCHED_DEFAULT_BANDWIDTH_MAX
    fi
    if [[ -n "$GHSCHED_NODE_BANDWIDTH" ]]; then
        iniset $NOVA_CONF ghsched node_bandwidth $GHSCHED_NODE_BANDWIDTH
    fi
    # Nova starts privsep daemons through rootwrap, which knows no context of
    # ours without this.
    sudo install -o root -g root -m 0644 \
        $GHSCHED_DIR/etc/nova/$GHSCHED_ROOTWRAP \
        $NOVA_CONF_DIR/$GHSCHED_ROOTWRAP
    mount_resctrl
}

# A kernel or a machine without resctrl is no error: such a host offers no
# bandwidth, and guests that ask for some are not placed there.
function mount_resctrl {
    if ! grep -q -w resctrl /proc/filesystems; then
        echo "This host has no resctrl; it will offer no memory bandwidth."
    elif ! grep -q " $GHSCHED_RESCTRL_PATH resctrl " /proc/mounts; then
        sudo mount -t resctrl resctrl $GHSCHED_RESCTRL_PATH
    fi
}

# stack.sh has started nova-scheduler by now and offers plugins no way to
# choose its program, so it is replaced. Ours is the same service with another
# manager.
function start_ghsched_scheduler {
    stop_process n-sch
    run_process n-sch \
        "$NOVA_BIN_DIR/ghsched-nova-scheduler --config-file $NOVA_CONF"
}

function configure_ghsched_tempest {
    local available=False
    if grep -q " $GHSCHED_RESCTRL_PATH resctrl " /proc/mounts; then
        available=True
    fi
    iniset $TEMPEST_CONFIG service_available ghsched $available
    iniset $TEMPEST_CONFIG ghsched host_command "$GHSCHED_HOST_COMMAND"
    iniset $TEMPEST_CONFIG ghsched resctrl_path $GHSCHED_RESCTRL_PATH
}

function cleanup_ghsched {
    sudo rm -f $NOVA_CONF_DIR/$GHSCHED_ROOTWRAP
}

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
    stack/extra)
        if is_service_enabled n-sch; then
            echo_summary "Starting the scheduler of ghsched"
            start_ghsched_scheduler
        fi
        ;;
    stack/test-config)
        if is_service_enabled tempest; then
            echo_summary "Configuring tempest for ghsched"
            configure_ghsched_tempest
        fi
        ;;
    unstack/*)
        # The scheduler runs as devstack's own n-sch, which unstack.sh stops.
        ;;
    clean/*)
        cleanup_ghsched
        ;;
    esac
fi

$_XTRACE_GHSCHED
