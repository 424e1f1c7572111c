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

"""Simulated hosts of the demonstration cloud: names, files, giving up one."""

import contextlib
import io
import types
from unittest import mock

from ghsched_nova.tests.fixtures import cloud_tools


class HostsTest(cloud_tools.CloudToolsTestCase):

    def setUp(self):
        super().setUp()
        from aio import settings
        self.hosts = tuple(settings.ComputeHost(number) for number in (1, 2))
        self.error = settings.CloudError

    def servers(self, *names):
        """Give the second host servers with these names."""
        from aio import catalog
        found = [types.SimpleNamespace(name=name) for name in names]
        cloud = mock.Mock()
        cloud.compute.servers.side_effect = lambda host, **_: (
            found if host == 'simulated-2' else [])
        self.enterContext(mock.patch.object(catalog, 'connect',
                                            return_value=cloud))
        return cloud

    def test_second_host_with_servers_is_refused_with_ways_out(self):
        from aio import catalog
        self.servers('web', 'db')
        error = str(self.assertRaises(
            self.error, catalog.check_empty, self.settings, 'simulated-2'))
        for text in ('simulated-2', 'db, web', 'server delete', ' db web',
                     'server migrate', 'tools/cloud up --hosts 2'):
            self.assertIn(text, error)
        self.assertNotIn('409', error)
        catalog.check_empty(self.settings, 'simulated-1')

    def up_with_one(self, answers):
        """Reduce a cloud of two hosts to one.

        :param answers: whether nova-api runs before.
        """
        from aio import cli
        self.settings.save_hosts(self.hosts)
        with (mock.patch.object(cli, 'answers', return_value=answers),
              mock.patch.object(cli, 'host_down') as down,
              mock.patch.object(cli, 'up'),
              contextlib.redirect_stdout(io.StringIO())):
            error = self.assertRaises(
                self.error, cli.up_with, self.settings, self.hosts[:1])
        return str(error), down

    def test_cloud_that_runs_is_refused_before_a_host_is_stopped(self):
        self.servers('web')
        error, down = self.up_with_one(answers=True)
        self.assertIn('servers are on it: web', error)
        down.assert_not_called()
        self.assertEqual(self.hosts, self.settings.hosts)

    def test_cloud_that_was_stopped_keeps_the_host_that_is_not_given_up(self):
        import openstack
        cloud = self.servers('web')
        cloud.compute.services.return_value = ['service']
        cloud.compute.delete_service.side_effect = (
            openstack.exceptions.ConflictException('hosts instances'))
        error, _down = self.up_with_one(answers=False)
        self.assertIn('servers are on it: web', error)
        self.assertEqual(self.hosts, self.settings.hosts)

    def test_host_has_its_name_and_the_nova_conf_of_its_nova_compute(self):
        from aio import config
        from aio import host
        self.settings.save_hosts(self.hosts)
        for one in self.settings.each_host:
            with (mock.patch.multiple(
                    host, control=mock.DEFAULT, run=mock.DEFAULT,
                    set_faults=mock.DEFAULT, _nova_directory=mock.DEFAULT)
                  as made, mock.patch.object(host.ssh, 'configure')):
                made['_nova_directory'].side_effect = lambda _: 'nova'
                host.up(one)
            words = made['control'].call_args.args
            self.assertIn(('--hostname', one.host.name),
                          list(zip(words, words[1:], strict=False)))
            self.assertIn('nova:/etc/nova', words)
        config.write_all(self.settings)
        for one in self.settings.each_host:
            texts = [path.read_text() for path in (
                self.settings.etc / f'nova{one.host.suffix}').glob('*.conf')]
            self.assertIn(f'host = {one.host.name}\n', ''.join(texts))
