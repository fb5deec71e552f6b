package test

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/testing/logindtest"
)

// TestAShutdownOfTheMachine: the Node is not ready while the machine shuts down, also after nodestatus was restarted.
func TestAShutdownOfTheMachine(t *testing.T) {
	l := logindtest.Start(t)
	h := newHost(t)
	h.shutdownGracePeriod = 30 * time.Second
	stop := h.start()
	h.startOthers()
	isReady := func(a *apiserver) bool { c := ready(a); return c != nil && c.Status == v1.ConditionTrue }
	h.await("ready", isReady)

	l.Begin(t)
	h.await("not ready, for the shutdown", func(a *apiserver) bool {
		c := ready(a)
		return c.Status == v1.ConditionFalse && c.Reason == "KubeletNotReady" && c.Message == "node is shutting down"
	})
	stop()
	h.api.mu.Lock()
	h.api.ready = nil
	h.api.mu.Unlock()
	stop = h.start()
	h.await("reported after a restart", func(a *apiserver) bool {
		return len(a.ready) > 0 && strings.Contains(ready(a).Message, "node is shutting down")
	})
	h.api.mu.Lock()
	if slices.Contains(h.api.ready, v1.ConditionTrue) {
		t.Errorf("reports of Ready during the shutdown: %v", h.api.ready)
	}
	h.api.mu.Unlock()

	l.Cancel(t)
	h.await("ready after the cancellation", isReady)
	stop()
	if n := l.Taken(); n != 0 {
		t.Errorf("nodestatus took %d inhibitors", n)
	}
}
