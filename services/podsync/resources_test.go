package podsync

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/microlet/microlet/services/internal/peer"
	"github.com/microlet/microlet/services/podsync/internal/admission"
)

func TestHelpersAloneGetTheAgentsFolder(t *testing.T) {
	o := &resourceOptions{runtimeDir: "/run/microlet", helpers: admission.Helpers{Namespace: "agents"}}
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
