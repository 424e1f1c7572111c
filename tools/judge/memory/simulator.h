// Licensed under the Apache License, Version 2.0 (the "License"); you may
// not use this file except in compliance with the License. You may obtain
// a copy of the License at
//
//      http://www.apache.org/licenses/LICENSE-2.0
//
// Unless required by applicable law or agreed to in writing, software
// distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
// WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
// License for the specific language governing permissions and limitations
// under the License.

// Interface to a memory simulator. One simulator is linked with memory.cc.

#ifndef JUDGE_SIMULATOR_H
#define JUDGE_SIMULATOR_H

#include <cstdint>
#include <functional>
#include <memory>

namespace judge {

// Receives the tagged address of an access that is done (classes.h).
using Done = std::function<void(uint64_t)>;

class Simulator {
   public:
    virtual ~Simulator() = default;
    // Nanoseconds of a clock cycle.
    virtual double cycle_ns() const = 0;
    // Cycles for which a cache line occupies the data bus of its channel.
    virtual double line_cycles() const = 0;
    // Queue an access. Returns false where the queue of its channel is full.
    virtual bool add(uint64_t tagged, bool write) = 0;
    virtual void tick() = 0;
};

std::unique_ptr<Simulator> open_simulator(const char* configuration, Done done);

}  // namespace judge

#endif
