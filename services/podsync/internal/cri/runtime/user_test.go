package runtime

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/testing/fake"
)

func TestUserOfAContainer(t *testing.T) {
	b := newBench(t, Options{})
	b.fake.SetProgram("app",
		fake.Program{User: &runtimeapi.LinuxContainerUser{Uid: 47104, Gid: 1, SupplementalGroups: []int64{47100}}})
	id := b.container("u1", b.sandbox("u1", 0), "app", 0, nil)
	user, err := b.rt.User(t.Context(), id)
	if err != nil || user.GetUid() != 47104 || user.GetGid() != 1 ||
		!slices.Equal(user.GetSupplementalGroups(), []int64{47100}) {
		t.Errorf("user is %v, %v", user, err)
	}
	silent := b.container("u2", b.sandbox("u2", 0), "silent", 0, nil)
	if user, err := b.rt.User(t.Context(), silent); err != nil || user != nil {
		t.Errorf("user of a runtime that does not say: %v, %v", user, err)
	}
	b.fake.Fail("ContainerStatus", status.Error(codes.Unavailable, "away"))
	if _, err := b.rt.User(t.Context(), id); err == nil {
		t.Error("a runtime that does not answer is no error")
	}
}

func TestUserOfAVerboseStatus(t *testing.T) {
	// The relevant part of what containerd 1.7 and CRI-O 1.29 show.
	user := userOf(`{"sandboxID":"x","runtimeSpec":{"ociVersion":"1.1.0","process":{"user":{"uid":47104,"gid":47100,"additionalGids":[47100,47109]},"args":["sh"]}}}`)
	if user.GetUid() != 47104 || user.GetGid() != 47100 ||
		!slices.Equal(user.GetSupplementalGroups(), []int64{47100, 47109}) {
		t.Errorf("user is %v", user)
	}
	for _, info := range []string{"", "{", "{}", `{"runtimeSpec":{}}`, `{"runtimeSpec":null}`} {
		if user := userOf(info); user != nil {
			t.Errorf("%q gives the user %v, want none", info, user)
		}
	}
}
