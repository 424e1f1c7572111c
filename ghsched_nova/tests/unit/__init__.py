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

import contextlib
import os

# Nova 31 and 32 patch the standard library for eventlet when they are
# imported, and the waiting of tests that use threads never ends then.
os.environ.setdefault('OS_NOVA_DISABLE_EVENTLET_PATCHING', 'true')

# Nova 32 chooses native threads then, and fails where oslo.messaging, imported
# before Nova, has chosen eventlet. Nova 31 comes with an oslo.service that
# knows eventlet alone.
with contextlib.suppress(ImportError, ValueError):
    from oslo_service import backend
    backend.init_backend(backend.BackendType.THREADING)
