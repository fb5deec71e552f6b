package podsetup

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/services/internal/peer"
	"github.com/microlet/microlet/services/podsync/internal/admission"
)

func TestHelpersAloneGetTheAgentsFolder(t *testing.T) {
	o := &Options{RuntimeDir: "/run/microlet", Helpers: admission.Helpers{Namespace: "agents"}}
	pod := func(namespace string) *v1.Pod {
		return &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Labels: map[string]string{peer.LabelRole: "prober"}},
		}
	}
	if got := o.privateFolder(pod("default")); got != "/run/microlet" {
		t.Errorf("of an ordinary pod %q is kept", got)
	}
	if got := o.privateFolder(pod("agents")); got != "" {
		t.Errorf("of a helper %q is kept", got)
	}
}

func TestClusterDNS(t *testing.T) {
	got, err := clusterDNS([]string{"10.96.0.10", "fd00::10"})
	if err != nil || len(got) != 2 || got[1].String() != "fd00::10" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := clusterDNS([]string{"dns.example"}); err == nil || !strings.Contains(err.Error(), "clusterDNS") {
		t.Errorf("a name: %v", err)
	}
}
