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


"""Domain XML as Nova's libvirt driver writes it, made for the tests.

Element order and indentation are those of LibvirtConfigGuest.format_dom; the
text holds what could tempt an editor into changing it: a comment, CDATA, a
foreign namespace, an entity, and a memorytune in a place that is not ours.
"""

NOVA = '''<domain type="kvm">
  <uuid>6f1c2b34-8f0a-4a52-9f2e-0c3d9a5b7e11</uuid>
  <name>instance-0000002a</name>
  <memory>1048576</memory>
  <memoryBacking>
    <hugepages>
      <page size="2048" unit="KiB" nodeset="0-1"/>
    </hugepages>
  </memoryBacking>
  <numatune>
    <memory mode="strict" nodeset="0-1"/>
    <memnode cellid="0" mode="strict" nodeset="0"/>
    <memnode cellid="1" mode="strict" nodeset="1"/>
  </numatune>
  <vcpu>4</vcpu>
  <metadata>
    <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
      <nova:name>web &lt;1&gt; &amp; more \u00e9</nova:name>
      <cputune><memorytune vcpus="9"/></cputune>
      <nova:note><![CDATA[a < b]]></nova:note>
    </nova:instance>
  </metadata>
  <!-- by hand -->
  <os>
    <type arch="x86_64" machine="q35">hvm</type>
  </os>
  <cputune>
    <shares>4096</shares>
    <emulatorpin cpuset="0-1,80-81"/>
    <vcpupin vcpu="0" cpuset="0"/>
    <vcpupin vcpu="1" cpuset="1"/>
    <vcpupin vcpu="2" cpuset="80"/>
    <vcpupin vcpu="3" cpuset="81"/>
  </cputune>
  <cpu mode="host-model" match="exact">
    <numa>
      <cell id="0" cpus="0-1" memory="524288" memAccess="shared"/>
      <cell id="1" cpus="2-3" memory="524288" memAccess="shared"/>
    </numa>
  </cpu>
  <devices>
    <disk type="network" device="disk">
      <source protocol="rbd" name="vms/x"><host name="192.0.2.1"/></source>
      <target dev="vda" bus="virtio"/>
    </disk>
    <memballoon model="virtio">
      <stats period="10"/>
    </memballoon>
  </devices>
</domain>'''

BEFORE, _REST = NOVA.split('  <cputune>\n    <shares>')
AFTER = _REST.split('  </cputune>\n')[1]

#: The same guest, nothing pinned: Nova then writes no cputune.
WITHOUT_CPUTUNE = BEFORE + AFTER

#: Nova writes it in one line when it is not for a log.
ONE_LINE = ''.join(line.strip() for line in NOVA.splitlines())

ALL = (NOVA, WITHOUT_CPUTUNE, ONE_LINE)
