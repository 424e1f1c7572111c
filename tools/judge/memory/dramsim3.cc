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

// DRAMsim3 as the memory simulator.

#include "memory_system.h"
#include "simulator.h"

namespace {

class Dramsim3 : public judge::Simulator {
   public:
    Dramsim3(const char* configuration, judge::Done done)
        : memory_(dramsim3::GetMemorySystem(configuration, ".", done, done)) {}

    double cycle_ns() const override { return memory_->GetTCK(); }

    double line_cycles() const override { return memory_->GetBurstLength() / 2.0; }

    bool add(uint64_t tagged, bool write) override {
        return memory_->WillAcceptTransaction(tagged, write) &&
               memory_->AddTransaction(tagged, write);
    }

    void tick() override { memory_->ClockTick(); }

   private:
    std::unique_ptr<dramsim3::MemorySystem> memory_;
};

}  // namespace

std::unique_ptr<judge::Simulator> judge::open_simulator(const char* configuration,
                                                        Done done) {
    return std::make_unique<Dramsim3>(configuration, done);
}
