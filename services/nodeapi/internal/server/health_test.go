package server

import (
	"strings"
	"testing"
)

// TestServiceLevelIndicators are counted when all checks are asked for, and can be reset.
func TestServiceLevelIndicators(t *testing.T) {
	n := newNode(t, nil)
	h := n.Handler(decision{})
	serve(t, h, "DELETE", "/metrics/slis") // the counts are the process's: other tests ask too
	serve(t, h, "GET", "/healthz?exclude=log")
	_, body, _ := serve(t, h, "GET", "/metrics/slis")
	for _, want := range []string{
		`kubernetes_healthcheck{name="ping",type="healthz"} 1`,
		`kubernetes_healthcheck{name="syncloop",type="healthz"} 0`, // no podsync here
		`kubernetes_healthchecks_total{name="syncloop",status="error",type="healthz"} 1`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics/slis lacks %s:\n%s", want, body)
		}
	}
	if strings.Contains(body, `name="log"`) {
		t.Errorf("a check that was excluded is counted:\n%s", body)
	}
	if code, _, _ := serve(t, h, "DELETE", "/metrics/slis"); code != 200 {
		t.Errorf("reset: %d", code)
	}
	if _, body, _ := serve(t, h, "GET", "/metrics/slis"); strings.Contains(body, "kubernetes_healthchecks_total{") {
		t.Errorf("counts survived their reset:\n%s", body)
	}
	if code, _, _ := serve(t, n.ReadOnly(), "GET", "/metrics/slis"); code != 200 {
		t.Errorf("read-only port: %d", code)
	}
}
