package images

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	runtimefake "github.com/microlet/microlet/services/internal/testing/fake"
	"github.com/microlet/microlet/services/podsync/internal/cluster/objects"
	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
)

// TestAPullSecretThatCannotBeReadLeavesTheOthers: the pull is not anonymous because of it, and an event names it.
func TestAPullSecretThatCannotBeReadLeavesTheOthers(t *testing.T) {
	const app = "registry.example/app:1"
	client := fake.NewClientset(&v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "good"}, Type: v1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{
			v1.DockerConfigJsonKey: []byte(`{"auths":{"registry.example":{"username":"ann","password":"secret"}}}`),
		},
	})
	client.PrependReactor("get", "secrets", func(a clienttesting.Action) (bool, apiruntime.Object, error) {
		if a.(clienttesting.GetAction).GetName() == "unreadable" {
			return true, nil, errors.New("etcdserver: request timed out")
		}
		return false, nil, nil
	})
	cri := runtimefake.NewRuntime(time.Now)
	cri.SetPull(app, runtimefake.Pull{Auth: func(a *runtimeapi.AuthConfig) error {
		if a.GetUsername() != "ann" || a.GetPassword() != "secret" {
			return errors.New("unauthorized")
		}
		return nil
	}})
	log, events := slog.New(slog.DiscardHandler), record.NewFakeRecorder(100)
	rt, err := runtime.New(cri.Conn(), cri.Conn(), runtime.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	puller, err := newPuller(pullerOptions{Runtime: rt, Events: events, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	i := &Images{puller: puller, runtime: rt, secrets: objects.New(client, objects.Options{Log: log}), events: events,
		needsUser: func(*v1.Pod) bool { return false }}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Spec: v1.PodSpec{
		ImagePullSecrets: []v1.LocalObjectReference{{Name: "absent"}, {Name: "unreadable"}, {Name: "good"}},
		Containers:       []v1.Container{{Name: "c", Image: app}},
	}}
	if _, err := i.Ensure(t.Context(), p, &p.Spec.Containers[0]); err != nil {
		t.Errorf("pull: %v", err)
	}
	want := "Warning FailedToRetrieveImagePullSecret Unable to retrieve some image pull secrets (absent, unreadable); " +
		"attempting to pull the image may not succeed."
	if got := <-events.Events; !strings.HasPrefix(got, want) {
		t.Errorf("event %q, want %q", got, want)
	}
}

// The image's own user is asked for only where it decides whether the container may run.
func TestTheImagesUserIsKnownWhereItMatters(t *testing.T) {
	for name, c := range map[string]struct {
		pod       v1.PodSecurityContext
		container *v1.SecurityContext
		want      bool
	}{
		"the pod says nothing":         {},
		"the pod must not run as root": {pod: v1.PodSecurityContext{RunAsNonRoot: new(true)}, want: true},
		"the container may nevertheless": {v1.PodSecurityContext{RunAsNonRoot: new(true)},
			&v1.SecurityContext{RunAsNonRoot: new(false)}, false},
		"the container must not, the pod may": {v1.PodSecurityContext{}, &v1.SecurityContext{RunAsNonRoot: new(true)}, true},
		"the container leaves it to the pod":  {v1.PodSecurityContext{RunAsNonRoot: new(true)}, &v1.SecurityContext{}, true},
	} {
		p := &v1.Pod{Spec: v1.PodSpec{SecurityContext: &c.pod}}
		if got := mustNotBeRoot(p, &v1.Container{SecurityContext: c.container}); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if mustNotBeRoot(&v1.Pod{}, &v1.Container{}) {
		t.Error("a pod without a security context must not run as root")
	}
}
