package admission

import (
	"context"
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
	"github.com/microlet/microlet/services/podsync/internal/images"
)

// answer is the runtime's.
type answer struct {
	user *runtimeapi.LinuxContainerUser
	err  error
}

func (a answer) User(context.Context, string) (*runtimeapi.LinuxContainerUser, error) {
	return a.user, a.err
}

// What a container's image gives it is judged by the runtime's word, also in a pod that reaches nothing of the
// host: another pod may hand it a folder of the host.
func TestUsersOfContainers(t *testing.T) {
	host := &v1.Pod{Spec: v1.PodSpec{HostPID: true}}
	alone, numbered := &v1.Pod{}, host.DeepCopy()
	namespaced := &v1.Pod{Spec: v1.PodSpec{HostUsers: new(false)}}
	numbered.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: new(int64(1000))}
	user := func(uid, gid int64, groups ...int64) *runtimeapi.LinuxContainerUser {
		return &runtimeapi.LinuxContainerUser{Uid: uid, Gid: gid, SupplementalGroups: groups}
	}
	away := errors.New("away")
	for _, c := range []struct {
		name  string
		pod   *v1.Pod
		image images.Image
		user  *runtimeapi.LinuxContainerUser
		err   error
		want  string // part of the refusal; empty starts
	}{
		{name: "an ordinary user", pod: host, image: images.Image{User: "app"}, user: user(1000, 1000)},
		{name: "a name that is the prober's user", pod: host, image: images.Image{User: "app"}, user: user(47104, 0),
			want: "user 47104"},
		{name: "nodestatus's user in a pod of its own", pod: alone, user: user(47103, 0), want: "user 47103"},
		{name: "the logs' group in a pod of its own", pod: alone, user: user(1000, 1000, 47109), want: "group 47109"},
		{name: "an ordinary user in a pod of its own", pod: alone, user: user(1000, 1000)},
		{name: "nodestatus's user in a user namespace", pod: namespaced, user: user(47103, 0, 47109)},
		{name: "the user's group", pod: host, user: user(1000, 47100), want: "group 47100"},
		{name: "a group of the image's list, beside the pod's own user", pod: numbered, user: user(1000, 1000, 1, 47109),
			want: "group 47109"},
		{name: "a name of which the runtime says nothing", pod: host, image: images.Image{User: "app"},
			want: "set runAsUser"},
		{name: "a number of which the runtime says nothing", pod: host, image: images.Image{UID: new(int64(1000))}},
		{name: "a name that the pod's number replaces", pod: numbered, image: images.Image{User: "app"}},
		{name: "a runtime that does not answer", pod: host, err: away, want: "away"},
	} {
		check := NewJudge(Helpers{}, answer{c.user, c.err}).CheckCreated(c.pod, &v1.Container{Name: "c"}, &c.image)
		err := check(t.Context(), "id")
		refused := (*runtime.RefusedError)(nil)
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		case err != nil && errors.As(err, &refused) == (c.err != nil):
			t.Errorf("%s: %T", c.name, err)
		}
	}
	if v := NewJudge(Helpers{}, nil).AdmitImage(host, &v1.Container{Name: "c"},
		&images.Image{UID: new(int64(47104))}); v.Admitted() {
		t.Error("an image with the prober's user is admitted")
	}
	if v := NewJudge(Helpers{}, nil).AdmitImage(namespaced, &v1.Container{Name: "c"},
		&images.Image{UID: new(int64(47104))}); !v.Admitted() {
		t.Errorf("an image with the prober's user, in a user namespace: %s", v.Message)
	}
}
