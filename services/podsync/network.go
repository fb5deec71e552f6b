package podsync

import (
	"fmt"
	"sync/atomic"

	podsyncv1 "github.com/microlet/microlet/proto/microlet/podsync/v1"
)

// networkState is what the runtime said last of the pods' network.
type networkState struct {
	said atomic.Pointer[podsyncv1.Runtime_Condition]
}

// learn keeps what an answer says; a runtime that does not answer says nothing.
func (s *networkState) learn(r *podsyncv1.Runtime) {
	if c := r.GetNetworkReady(); c != nil {
		s.said.Store(c)
	}
}

// problem is empty when there is a network, or nothing is known: then the runtime itself
// refuses what it cannot do.
func (s *networkState) problem() string {
	c := s.said.Load()
	if c == nil || c.GetStatus() {
		return ""
	}
	return fmt.Sprintf("container runtime network not ready: NetworkReady=false reason:%s message:%s", c.GetReason(), c.GetMessage())
}
